/* cpu_pairs_amx.c - whether AMX is here, and its instructions for the tile of cpu_pairs_amx.h.
 *
 * Three have to agree: the system saves the registers (XCR0), the processor multiplies bf16 (CPUID), and the process
 * may use them, which Linux grants on request since 5.16, to all its threads for good. Registers are configured for one
 * strip at a time: between strips a thread holds no state that would be saved when it is interrupted.
 */
#include "cpu_internal.h"

#if defined(__AVX512F__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define AMX_CODE                 __attribute__((target("amx-tile,amx-bf16")))
#define AMX_CONFIGURE(shapes)    _tile_loadconfig(shapes)
#define AMX_RELEASE()            _tile_release()
#define AMX_ZERO(t)              _tile_zero(t)
#define AMX_LOAD(t, from, bytes) _tile_loadd(t, from, bytes)
#define AMX_STORE(t, to, bytes)  _tile_stored(t, to, bytes)
#define AMX_MULTIPLY(c, a, b)    _tile_dpbf16ps(c, a, b)
#include "cpu_pairs_amx.h"

/* Asked for with every product: the cheap question, which most processors answer with no, comes first. */
static bool amx_is_here(void)
{
    enum { TILE_CONFIG = 17, TILE_DATA = 18, REQUEST_PERMISSION = 0x1023, AMX_BF16 = 22, AMX_TILE = 24 };
    const uint64_t saved = 1u << TILE_CONFIG | 1u << TILE_DATA;
    const uint32_t wanted = 1u << AMX_BF16 | 1u << AMX_TILE;
    uint32_t eax, ebx, ecx, edx;
    if (((uint64_t)_xgetbv(0) & saved) != saved || syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) != 0)
        return false;
    __cpuid_count(7, 0, eax, ebx, ecx, edx);
    return (edx & wanted) == wanted;
}

const cpu_pair_kernel *CPU(pair_kernel_amx)(void)
{
    return amx_is_here() ? &amx_kernel : NULL;
}
#else
const cpu_pair_kernel *CPU(pair_kernel_amx)(void)
{
    return NULL;
}
#endif
