/* trainer_internal.h - what a training run holds, shared by trainer.c (the loop), trainer_setup.c (making it) and
 * trainer_report.c (what people and files get to see).
 */
#ifndef CLV_TRAINER_INTERNAL_H
#define CLV_TRAINER_INTERNAL_H

#include "train/train.h"

#include <stdio.h>

/* ---- binding.c ---- */
typedef struct clv_binding {
    int cores;   /* that this rank may use */
    int sharing; /* ranks of this host that may use some of them, itself included */
} clv_binding;
clv_binding clv_binding_find(clv_comm *world); /* Collective: world. */
int clv_binding_threads(const clv_binding *b, int64_t wanted);
void clv_binding_warn(const clv_binding *b, int threads);

typedef struct clv_curve { /* points for the picture */
    double *x, *y;
    size_t count;
} clv_curve;

typedef struct clv_report {
    FILE *metrics;            /* rank 0; NULL: none */
    double loss_sum, seconds; /* since the last line */
    int64_t updates, tokens;
    double first; /* when the loop began */
    int64_t first_iteration;
    clv_curve train, valid;
} clv_report;

typedef struct clv_trainer {
    const clv_options *options;
    clv_comm *world;
    clv_runtime rt;
    clv_config config;
    clv_tokenizer *tokenizer; /* NULL with mock data */
    clv_stages stages;
    clv_engine engine;
    clv_feed train, valid; /* valid.data NULL: no evaluation */
    clv_batch_plan batches;
    int64_t seq_length, iterations, train_samples;
    int64_t global_batch; /* of the end of a ramp, and of evaluations */
    int64_t batch;        /* of the update at hand */
    clv_lr_plan plan;
    clv_progress progress;
    clv_room *room;     /* of checkpoints in the background */
    clv_saving *saving; /* a checkpoint on its way; NULL: none */
    int64_t saving_iteration;
    double waited; /* seconds that it took from the run */
    double took;   /* of the last iteration, without what came after its update */
    clv_scaler_rules scaling;
    clv_report report;
    int64_t process; /* resident bytes before the arenas were made */
    bool engine_made;
} clv_trainer;

/* Everything up to the first iteration; on failure close what was made. Collective: world. */
clv_status clv_trainer_open(clv_trainer *t, clv_comm *world, const clv_options *options);
void clv_trainer_close(clv_trainer *t);
clv_checkpoint clv_trainer_checkpoint(clv_trainer *t); /* what is saved now */

clv_status clv_report_open(clv_trainer *t);
void clv_report_step(clv_trainer *t, const clv_step *step, double lr, double seconds);
void clv_report_valid(clv_trainer *t, double loss);
clv_status clv_report_close(clv_trainer *t);

#endif
