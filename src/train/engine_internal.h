/* engine_internal.h - shared by engine.c, engine_plan.c, micro.c, pipeline.c and generator.c. */
#ifndef CLV_ENGINE_INTERNAL_H
#define CLV_ENGINE_INTERNAL_H

#include "train/train.h"

/* Micro-batch `micro` of the pass into the slot, in cx.save, and dropout's keys into the tracker. */
void clv_micro_create(clv_engine *e, clv_slot *slot, const clv_pass *pass, int micro);

/* The parts of the model that this stage holds, in the engine's arenas, and the records of all parts. Of the spec it
 * needs the shape and how the model is built. */
void clv_engine_parts(clv_engine *e, const clv_mesh *mesh, const clv_stages *stages);
/* Chunks, records, moments, wires over the arenas that the engine has, which may be counting. slots: bytes of a slot of
 * each chunk, cut out of `save`; NULL: the slots count too. */
void clv_engine_build(clv_engine *e, const clv_backend *backend, const clv_mesh *mesh, const size_t *slots);
void clv_engine_unbuild(clv_engine *e);
clv_engine_bytes clv_engine_count(const clv_engine_spec *spec, const clv_layout *layout, int rank, size_t **slots);
/* The sums and the norm that close a step. */
double clv_engine_finish(clv_engine *e);

#endif
