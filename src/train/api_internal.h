/* api_internal.h - what the handles of include/cleave.h hold. */
#ifndef CLV_API_INTERNAL_H
#define CLV_API_INTERNAL_H

#include "cleave.h"
#include "train/train.h"

struct cleave_world {
    clv_comm *comm;
};

struct cleave_options {
    clv_options inner;
    clv_list words;
};

cleave_status clv_api_status(clv_status st);
/* What --log-level asks for. */
void clv_api_log(const clv_options *options, int rank, int size);

#endif
