#include "opencl/quirks.h"

#include <stdio.h>
#include <string.h>

static const struct cld_quirk_info quirks[] = {
    {CLD_QUIRK_FIXED_GRID, "fixed-grid", "Portable Computing Language",
     "PoCL 1.|PoCL 2.|PoCL 3.|PoCL 4.|PoCL 5.", "before 6.0",
     "aborts when one kernel is in flight twice with growing global sizes: what releases a cached "
     "code "
     "handle looks it up by other fields than the code that acquired it "
     "(pocl_release_dlhandle_cache)",
     "every launch of a kernel uses one fixed grid",
     "https://github.com/pocl/pocl/blob/v3.1/lib/CL/devices/common.c"},
    {CLD_QUIRK_NOTED, "no-small-group", "Portable Computing Language", "PoCL 1.|PoCL 2.|PoCL 3.",
     "before 4.0",
     "its compiler aborts on loops with barriers at local size 1 or 2 (an assertion in "
     "ParallelRegion.cc)",
     "kernels with barriers use groups of 4 or more",
     "https://github.com/pocl/pocl/blob/v3.1/lib/llvmopencl/ParallelRegion.cc"},
    {CLD_QUIRK_NOTED, "memory-guess", "Portable Computing Language", NULL, "all",
     "reports a fraction of the memory that a virtual machine has now, and a quarter of it as the "
     "largest buffer",
     "memory.limit_gib overrides", "https://github.com/pocl/pocl/issues/1720"},
    {CLD_QUIRK_DEAR_BINARY, "dear-binary", "Portable Computing Language", NULL, "all",
     "compiles every kernel once more when asked for a program's binary, and has a cache of its "
     "own: "
     "a first start of 51 s of CPU time instead of 22, later ones of 1.2 instead of 2.2 (PoCL 3.1)",
     "no cache of programs unless runtime.cache_dir names one", ""},
    {CLD_QUIRK_BAD_IL, "bad-il", "Portable Computing Language", "PoCL 6.", "6.0",
     "on processors without AVX-512, what a SPIR-V module calls with a vector of 512 bits (exp, "
     "fma or "
     "vstore16 of a float16) gets unwritten memory: the function takes these vectors by "
     "address, the wrapper that modules call passes them without `byval`, and its store is "
     "optimised "
     "away (kernel-x86_64-pc-linux-gnu-avx2.bc of Debian's 6.0-6). 164 of the 280 cases of the "
     "kernels "
     "for CPUs were wrong or differed from run to run; as many of those for GPUs, narrower, all "
     "pass",
     "modules are refused: kernels come from source", ""},
    {CLD_QUIRK_MAX_ALLOC_LOW, "max-alloc-low", "NVIDIA", NULL, "all",
     "reports a quarter of memory as the largest buffer; buffers of 116 of 140 GiB work (H200, "
     "driver 580)",
     "buffers may be as large as the memory", "https://github.com/pocl/pocl/pull/1478"},
    {CLD_QUIRK_NOTED, "lazy-alloc", "NVIDIA", NULL, "all",
     "creates buffers larger than the card without an error and fails at first use",
     "buffers are touched at start", ""},
    {CLD_QUIRK_SINGLE_THREAD, "single-thread", "Oclgrind", NULL, "all",
     "crashes or computes wrongly with two host threads", "one worker and one thread of checks",
     "https://github.com/jrprice/Oclgrind/issues/28"},
    {CLD_QUIRK_NO_CLBLAST, "no-clblast", "Oclgrind", NULL, "all",
     "crashes inside CLBlast (corrupted double-linked list)", "CLBlast is never chosen", ""},
    {CLD_QUIRK_SEES_MEMORY, "sees-memory", "Oclgrind", NULL, "all",
     "no fault: it reports every access outside a buffer, and cannot see one that guard zones take",
     "checks keep no guard zones around tensors there",
     "https://github.com/jrprice/Oclgrind/wiki/Detecting-Memory-Access-Errors"},
    {CLD_QUIRK_NOTED, "named-local", "Oclgrind", NULL, "all",
     "knows the local arrays of a kernel by their names, which begin with the kernel's; one "
     "without "
     "a name, as `spirv-opt --strip-debug` leaves it, gets no memory: 'FATAL ERROR: Unsupported "
     "pointer size: 0 bytes' (21.10)",
     "modules keep their names",
     "https://github.com/jrprice/Oclgrind/blob/master/src/core/Kernel.cpp"},
    {CLD_QUIRK_NO_PARTS, "no-parts", "rusticl", "22.|23.", "Mesa 22 and 23",
     "has no clCreateSubDevices: the call is a jump to nowhere (22.3.6)",
     "parts of this device are refused", ""},
    {CLD_QUIRK_NOTED, "bad-long", "rusticl", "22.|23.", "Mesa 22 and 23",
     "compares a long that was an int wrongly with a constant: `(long)i >= 16` is true and "
     "`(long)i < "
     "16` false with i = 4 (22.3.6); a long that was a uint, or a difference of such, rightly. In "
     "qknorm_rope the tail of a row then counted as a whole vector and was written after its end",
     "no kernel compares a long of this kind", ""},
    {CLD_QUIRK_GPU_KERNELS, "gpu-kernels", "rusticl", NULL, "all",
     "makes lanes of vectors out of work-items on llvmpipe: with the kernels for CPUs, whose "
     "work-items "
     "are vectors themselves, the backward kernels of sparse attention did not compile in four "
     "minutes "
     "each (22.3.6)",
     "the kernels for GPUs are used", "https://docs.mesa3d.org/drivers/llvmpipe.html"},
};

const struct cld_quirk_info *cld_quirk_at(size_t i)
{
    return i < sizeof quirks / sizeof *quirks ? &quirks[i] : NULL;
}

const struct cld_quirk_info *cld_quirk_of(unsigned bit)
{
    size_t i = 0;
    while (i < sizeof quirks / sizeof *quirks && !(quirks[i].bit & bit))
        i++;
    return cld_quirk_at(i);
}

/* Whether one of the alternatives stands somewhere in the text. */
static bool has_version(const char *versions, const char *text)
{
    char word[64];
    for (const char *at = versions; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, "|"), at);
        if (strstr(text, word))
            return true;
    }
    return false;
}

bool cld_quirk_fits(const struct cld_quirk_info *quirk, const char *platform,
                    const char *platform_version, const char *driver)
{
    return !strncmp(platform, quirk->platform, strlen(quirk->platform)) &&
           (!quirk->versions || has_version(quirk->versions, platform_version) ||
            has_version(quirk->versions, driver));
}

unsigned cld_quirks_of(const char *platform, const char *platform_version, const char *driver)
{
    unsigned bits = 0;
    for (size_t i = 0; i < sizeof quirks / sizeof *quirks; i++)
        if (cld_quirk_fits(&quirks[i], platform, platform_version, driver))
            bits |= quirks[i].bit;
    return bits;
}
