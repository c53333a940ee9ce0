/* SPIR-V modules on the host's side: what is read from them, what is refused and why, the manifest,
 * and the queue's part in it. Modules are assembled from text here, so no compiler is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
/* The header defines this constant in each C file that includes it; src/spirv.c does, too. */
#define kDefaultMaxIdBound test_max_id_bound
#include <spirv-tools/libspirv.h>

#include "base/file.h"
#include "opencl/modules.h"
#include "opencl/nvptx.h"
#include "opencl/queue.h"
#include "opencl/spirv.h"
#include "temp_dir.h"
#include "opencl/variants.h"

/* A kernel that stores nothing: twice(global float *, ulong), in the model of ADDRESSES. */
#define MODULE(ADDRESSES, CAPABILITIES)                                                            \
    "OpCapability Addresses\nOpCapability Kernel\nOpCapability Int64\n" CAPABILITIES               \
    "OpMemoryModel " ADDRESSES " OpenCL\n"                                                         \
    "OpEntryPoint Kernel %f \"twice\"\n"                                                           \
    "%void = OpTypeVoid\n%float = OpTypeFloat 32\n%ulong = OpTypeInt 64 0\n"                       \
    "%ptr = OpTypePointer CrossWorkgroup %float\n"                                                 \
    "%type = OpTypeFunction %void %ptr %ulong\n"                                                   \
    "%f = OpFunction %void None %type\n%a = OpFunctionParameter %ptr\n"                            \
    "%b = OpFunctionParameter %ulong\n%entry = OpLabel\nOpReturn\nOpFunctionEnd\n"

static const char shader[] =
    "OpCapability Shader\nOpMemoryModel Logical GLSL450\n"
    "OpEntryPoint GLCompute %f \"main\"\nOpExecutionMode %f LocalSize 1 1 1\n"
    "%void = OpTypeVoid\n%type = OpTypeFunction %void\n%f = OpFunction %void None %type\n"
    "%entry = OpLabel\nOpReturn\nOpFunctionEnd\n";

struct bytes {
    char *at;
    size_t n;
};

static struct bytes assemble(const char *text, spv_target_env env)
{
    spv_context c = spvContextCreate(env);
    spv_binary binary = NULL;
    spv_diagnostic d = NULL;
    if (spvTextToBinary(c, text, strlen(text), &binary, &d) != SPV_SUCCESS)
        fail_msg("%s", d->error);
    struct bytes b = {malloc(binary->wordCount * 4), binary->wordCount * 4};
    memcpy(b.at, binary->code, b.n);
    spvBinaryDestroy(binary);
    spvContextDestroy(c);
    return b;
}

static struct bytes good_module(void)
{
    return assemble(MODULE("Physical64", ""), SPV_ENV_OPENCL_1_2);
}

static void refuses(struct bytes b, const char *why)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_spirv m;
    assert_int_equal(cld_spirv_read(b.at, b.n, "it.spv", &m, &err), CLD_E_INPUT);
    if (!strstr(err.what, why) || !strstr(err.what, "it.spv"))
        fail_msg("'%s' does not say '%s'", err.what, why);
    cld_spirv_free(&m);
}

static void kernels_and_arguments_are_read(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_spirv m;
    struct bytes b = good_module();
    assert_int_equal(cld_spirv_read(b.at, b.n, "it.spv", &m, &err), CLD_OK);
    assert_int_equal(m.major, 1);
    assert_int_equal(m.minor, 0);
    assert_int_equal(m.address_bits, 64);
    assert_false(m.float64);
    assert_int_equal(m.n_kernels, 1);
    assert_non_null(cld_spirv_find(&m, "twice"));
    assert_null(cld_spirv_find(&m, "thrice"));
    assert_int_equal(m.kernels[0].n_arguments, 2);
    assert_string_equal(m.kernels[0].arguments, "global f32*, i64");
    cld_spirv_free(&m);
    free(b.at);
    b = assemble(MODULE("Physical32", "OpCapability Float64\n"), SPV_ENV_OPENCL_1_2);
    assert_int_equal(cld_spirv_read(b.at, b.n, "it.spv", &m, &err), CLD_OK);
    assert_int_equal(m.address_bits, 32);
    assert_true(m.float64);
    cld_spirv_free(&m);
    free(b.at);
}

static void damaged_modules_are_refused(void **state)
{
    (void)state;
    struct bytes b = good_module(), part = b;
    char magic = b.at[0];
    part.n = 0;
    refuses(part, "0 bytes are no SPIR-V module");
    part.n = b.n - 2;
    refuses(part, "are no SPIR-V module");
    part.n = b.n - 8;
    refuses(part, "is no valid module");
    b.at[0] ^= 1;
    refuses(b, "is no valid module");
    b.at[0] = magic;
    /* Any one word may be spoiled; nothing may be accepted that the reader cannot walk. */
    for (size_t i = 0; i < b.n; i++) {
        struct cld_error err = CLD_ERROR_INIT;
        struct cld_spirv m;
        b.at[i] ^= 0x15;
        enum cld_status s = cld_spirv_read(b.at, b.n, "it.spv", &m, &err);
        assert_true(s == CLD_OK || s == CLD_E_INPUT);
        cld_spirv_free(&m);
        b.at[i] ^= 0x15;
    }
    free(b.at);
}

static void modules_of_other_environments_are_refused(void **state)
{
    (void)state;
    struct bytes b = assemble(shader, SPV_ENV_VULKAN_1_0);
    refuses(b, "Shader");
    free(b.at);
    b = assemble(MODULE("Physical64", ""), SPV_ENV_UNIVERSAL_1_4);
    refuses(b, "1.4");
    free(b.at);
    b = assemble("OpCapability Addresses\nOpCapability Kernel\nOpCapability Linkage\n"
                 "OpMemoryModel Physical64 OpenCL\n",
                 SPV_ENV_OPENCL_1_2);
    refuses(b, "has no kernel");
    free(b.at);
}

/* --- the manifest ----------------------------------------------------------------------------- */

/* A directory with one module of the variant (text, options), and its key. */
static void make_store(const char *dir, const char *text, const char *options,
                       const char *arguments, char key[CLD_SHA256_HEX_BYTES])
{
    struct cld_error err = CLD_ERROR_INIT;
    char hash[CLD_SHA256_HEX_BYTES];
    struct bytes b = good_module();
    cld_module_key(text, options, key);
    cld_sha256_of(b.at, b.n, hash);
    char *path = cld_format("%s/%s.spv", dir, key);
    assert_int_equal(cld_file_write(path, b.at, b.n, &err), CLD_OK);
    free(path);
    char *manifest = cld_format("{\"format\": 1, \"modules\": {\"%s\": {\"spirv\": \"%s\", "
                                "\"kernels\": {\"twice\": \"%s\"}}}}",
                                key, hash, arguments);
    path = cld_format("%s/%s", dir, CLD_MANIFEST_NAME);
    assert_int_equal(cld_file_write(path, manifest, strlen(manifest), &err), CLD_OK);
    free(path);
    free(manifest);
    free(b.at);
}

static void modules_are_read_by_key_and_hash(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_modules *m = NULL;
    char key[CLD_SHA256_HEX_BYTES], other[CLD_SHA256_HEX_BYTES], *got = NULL;
    size_t n_bytes = 0;
    struct bytes b = good_module();
    const char *dir = *state;
    make_store(dir, "text", "-DX=1", "global f32*, i64", key);
    assert_int_equal(cld_modules_open(dir, &m, &err), CLD_OK);
    assert_int_equal(cld_modules_read(m, key, CLD_MODULE_SPIRV, &got, &n_bytes, &err), CLD_OK);
    assert_int_equal(n_bytes, b.n);
    assert_memory_equal(got, b.at, b.n);
    free(got);
    assert_string_equal(cld_modules_arguments(m, key, "twice"), "global f32*, i64");
    assert_null(cld_modules_arguments(m, key, "thrice"));
    assert_int_equal(cld_modules_read(m, key, CLD_MODULE_PTX, &got, &n_bytes, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "not as ptx"));
    cld_module_key("text", "-DX=2", other);
    assert_string_not_equal(key, other);
    assert_int_equal(cld_modules_read(m, other, CLD_MODULE_SPIRV, &got, &n_bytes, &err),
                     CLD_E_INPUT);
    assert_non_null(strstr(err.what, "no module of this variant"));
    char *path = cld_format("%s/%s.spv", dir, key);
    b.at[b.n - 1] ^= 1;
    assert_int_equal(cld_file_write(path, b.at, b.n, &err), CLD_OK);
    assert_int_equal(cld_modules_read(m, key, CLD_MODULE_SPIRV, &got, &n_bytes, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "is damaged"));
    assert_null(got);
    cld_modules_close(m);
    free(path);
    free(b.at);
}

static void other_manifests_are_refused(void **state)
{
    static const char *const bad[] = {"{}", "[]", "{\"format\": 2, \"modules\": {}}",
                                      "{\"format\": 1, \"modules\": []}", "{\"format\": 1"};
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_modules *m = NULL;
    const char *dir = *state;
    char *path = cld_format("%s/%s", dir, CLD_MANIFEST_NAME);
    assert_int_equal(cld_modules_open(dir, &m, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "does not exist"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(cld_file_write(path, bad[i], strlen(bad[i]), &err), CLD_OK);
        assert_int_equal(cld_modules_open(dir, &m, &err), CLD_E_INPUT);
        assert_null(m);
    }
    free(path);
}

/* --- queues ----------------------------------------------------------------------------------- */

static struct cld_devices *devices;
static struct cld_device_info cpu;

static struct cld_queue *open_queue(const struct cld_queue_options *options)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_queue *q = NULL;
    if (cld_queue_open(&cpu, options, &q, &err))
        fail_msg("%s", err.what);
    return q;
}

static const struct cld_kernel_spec fill = {"fill.cl", "fill", "-DT=f32 ", 1};

static void a_missing_variant_is_named(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    char key[CLD_SHA256_HEX_BYTES];
    struct cld_kernel *k = NULL;
    const char *dir = *state;
    if (!cld_module_route(&cpu))
        skip();
    make_store(dir, "text", "-DX=1", "", key);
    struct cld_queue_options options = {.name = "test",
                                        .programs = {.source = CLD_PROGRAM_SPIRV, .modules = dir}};
    struct cld_queue *q = open_queue(&options);
    assert_int_equal(cld_kernel_get(q, &fill, &k, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "fill.cl"));
    assert_non_null(strstr(err.what, "-DT=f32"));
    assert_int_equal(cld_queue_counts(q).n_builds, 0);
    cld_queue_close(q);
}

static void an_override_must_fit_device_and_kernel(void **state)
{
    static const struct {
        const char *text;
        spv_target_env env;
        const char *why;
    } cases[] = {
        {MODULE("Physical64", ""), SPV_ENV_OPENCL_1_2, "no kernel fill among its 1 (first: twice)"},
        {MODULE("Physical32", ""), SPV_ENV_OPENCL_1_2, "addresses of 32 bits"},
        {MODULE("Physical64", "OpCapability Float16\n"), SPV_ENV_OPENCL_1_2, "Float16"},
        {shader, SPV_ENV_VULKAN_1_0, "Shader"}};
    const char *dir = *state;
    if (!cld_module_route(&cpu))
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cld_error err = CLD_ERROR_INIT;
        struct cld_kernel *k = NULL;
        struct bytes b = assemble(cases[i].text, cases[i].env);
        char *path = cld_format("%s/mine.spv", dir);
        assert_int_equal(cld_file_write(path, b.at, b.n, &err), CLD_OK);
        struct cld_override mine = {"fill.cl", path};
        struct cld_queue_options options = {.name = "test",
                                            .programs = {.overrides = &mine, .n_overrides = 1}};
        struct cld_queue *q = open_queue(&options);
        assert_int_equal(cld_kernel_get(q, &fill, &k, &err), CLD_E_INPUT);
        if (!strstr(err.what, cases[i].why) || !strstr(err.what, path))
            fail_msg("'%s' does not say '%s'", err.what, cases[i].why);
        cld_queue_close(q);
        free(path);
        free(b.at);
    }
}

static void a_listing_queue_builds_nothing(void **state)
{
    (void)state;
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_variants list = {0};
    struct cld_queue *q = open_queue(&(struct cld_queue_options){.name = "test", .list = &list});
    struct cld_buf *b = NULL;
    float got = 1;
    assert_int_equal(cld_buf_create(q, "b", 64, &b, &err), CLD_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(CLD_RUN(q, &fill, 1, &err, CLD_BUF(b)), CLD_OK);
    assert_int_equal(list.n, 1);
    assert_string_equal(list.at[0].file, "fill.cl");
    assert_non_null(strstr(list.at[0].options, "-cl-std=CL1.2"));
    assert_non_null(strstr(list.at[0].options, "-DT=f32"));
    assert_int_equal(cld_buf_read(b, 0, &got, sizeof got, &err), CLD_OK);
    assert_true(got == 0); /* as buffers begin */
    struct cld_queue_counts n = cld_queue_counts(q);
    assert_int_equal(n.n_builds + n.n_modules + n.n_launches, 0);
    cld_queue_close(q);
    cld_variants_free(&list);
}

/* --- texts ------------------------------------------------------------------------------------ */

static void variants_are_a_set_in_order(void **state)
{
    struct cld_error err = CLD_ERROR_INIT;
    struct cld_variants v = {0}, again = {0};
    char *path = cld_format("%s/list.txt", (const char *)*state);
    const char *const want[][2] = {{"a.cl", "-DX=1"}, {"a.cl", "-DX=2 "}, {"b.cl", "-DX=0"}};
    for (int i = 5; i >= 0; i--)
        assert_int_equal(cld_variants_add(&v, want[i % 3][0], want[i % 3][1], &err), CLD_OK);
    assert_int_equal(v.n, 3);
    FILE *f = fopen(path, "w");
    fputs("# a comment\n\n", f);
    cld_variants_write(&v, f);
    fclose(f);
    assert_int_equal(cld_variants_read(&again, path, &err), CLD_OK);
    assert_int_equal(again.n, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(again.at[i].file, want[i][0]);
        assert_string_equal(again.at[i].options, want[i][1]); /* blanks at the end count */
    }
    assert_int_equal(cld_file_write(path, "alone\n", 6, &err), CLD_OK);
    assert_int_equal(cld_variants_read(&again, path, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, ":1: 'alone'"));
    cld_variants_free(&v);
    cld_variants_free(&again);
    free(path);
}

static void spir_becomes_nvptx(void **state)
{
    (void)state;
    static const char from[] = "target datalayout = \"e-p:64\"\n"
                               "target triple = \"spir64-unknown-unknown\"\n"
                               "@my_spir_kernel = internal addrspace(2) constant i32 1\n"
                               "declare spir_func float @_Z5fractPU3AS2f(float addrspace(2)*)\n"
                               "define spir_kernel void @first(i8 addrspace(1)* %0) {\n"
                               "  %2 = call spir_func i64 @_Z12get_group_idj(i32 0)\n"
                               "  %3 = addrspacecast i8 addrspace(1)* %0 to i8 addrspace(4)*\n"
                               "}\n"
                               "define spir_kernel void @second() {\n}\n";
    static const char to[] = "target datalayout = \"e-i64:64-i128:128-v16:16-v32:32-n16:32:64\"\n"
                             "target triple = \"nvptx64-nvidia-nvcl\"\n"
                             "@my_spir_kernel = internal addrspace(4) constant i32 1\n"
                             "declare float @_Z5fractPU3AS4f(float addrspace(4)*)\n"
                             "define ptx_kernel void @first(i8 addrspace(1)* %0) {\n"
                             "  %2 = call i64 @_Z12get_group_idj(i32 0)\n"
                             "  %3 = addrspacecast i8 addrspace(1)* %0 to i8 addrspace(0)*\n"
                             "}\n"
                             "define ptx_kernel void @second() {\n}\n";
    struct cld_error err = CLD_ERROR_INIT;
    char *out = NULL, *kernels = NULL;
    assert_int_equal(cld_nvptx_from_spir(from, &out, &kernels, &err), CLD_OK);
    assert_string_equal(out, to);
    assert_string_equal(kernels, "first,second");
    free(out);
    free(kernels);
    char *builtins = cld_nvptx_builtins();
    assert_non_null(strstr(builtins, "define float @_Z10native_expf(float %x)"));
    assert_non_null(strstr(builtins, "define <16 x float> @_Z10native_expDv16_f(<16 x float> %x)"));
    free(builtins);
    assert_int_equal(cld_nvptx_from_spir("declare void @f()\n", &out, &kernels, &err), CLD_E_INPUT);
    assert_null(out);
}

int main(void)
{
    struct cld_error err = CLD_ERROR_INIT;
    if (cld_devices_open(&devices, &err))
        return 1;
    for (size_t i = devices->n; i-- > 0;)
        if (devices->at[i].class == CLD_CLASS_CPU && devices->at[i].available)
            cpu = devices->at[i];
    if (!cpu.cl_device)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_and_arguments_are_read),
        cmocka_unit_test(damaged_modules_are_refused),
        cmocka_unit_test(modules_of_other_environments_are_refused),
        cmocka_unit_test_setup_teardown(modules_are_read_by_key_and_hash, make_temp_dir,
                                        remove_temp_dir),
        cmocka_unit_test_setup_teardown(other_manifests_are_refused, make_temp_dir,
                                        remove_temp_dir),
        cmocka_unit_test_setup_teardown(a_missing_variant_is_named, make_temp_dir, remove_temp_dir),
        cmocka_unit_test_setup_teardown(an_override_must_fit_device_and_kernel, make_temp_dir,
                                        remove_temp_dir),
        cmocka_unit_test(a_listing_queue_builds_nothing),
        cmocka_unit_test_setup_teardown(variants_are_a_set_in_order, make_temp_dir,
                                        remove_temp_dir),
        cmocka_unit_test(spir_becomes_nvptx),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cld_devices_close(devices);
    return failed;
}
