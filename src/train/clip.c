/* clip.c - clipping by the global norm: gradients times min(1, clip / (norm + 1e-6)).
 *
 * A norm that is not finite clips nothing: whether such an update is made at all is the trainer's decision, and
 * infinity times the quotient's zero would turn finite gradients into NaN.
 *
 * Source: Pascanu et al. 2013, "On the difficulty of training recurrent neural networks"; the 1e-6 is Megatron-LM's.
 */
#include "train/train.h"

#include <math.h>

double clv_clip_coefficient(double norm, double clip)
{
    if (clip == 0.0 || !isfinite(norm))
        return 1.0;
    return fmin(1.0, clip / (norm + 1e-6));
}
