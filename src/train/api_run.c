/* api_run.c - the commands of include/cleave.h that run on all ranks. */
#include "train/api_internal.h"

static cleave_status run(cleave_world *world, const cleave_options *options,
                         clv_status (*command)(clv_comm *world, const clv_options *options))
{
    clv_api_log(&options->inner, clv_comm_rank(world->comm), clv_comm_size(world->comm));
    return clv_api_status(clv_comm_agree(world->comm, command(world->comm, &options->inner)));
}

cleave_status cleave_train(cleave_world *world, const cleave_options *options)
{
    return run(world, options, clv_train);
}

cleave_status cleave_eval(cleave_world *world, const cleave_options *options)
{
    return run(world, options, clv_eval);
}

cleave_status cleave_generate(cleave_world *world, const cleave_options *options)
{
    return run(world, options, clv_generate);
}

cleave_status cleave_verify(cleave_world *world, const cleave_options *options)
{
    return run(world, options, clv_verify);
}
