#include "base/manifest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/sha256.h"
#include "temp_dir.h"

/* FIPS 180-2, appendix B, and the empty string. */
static const struct {
    const char *text, *hex;
} known[] = {
    {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
};

static void known_hashes(void **state)
{
    char hex[CLD_SHA256_HEX_BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct cld_sha256 h;
        size_t n = strlen(known[i].text), half = n / 2;
        cld_sha256_of(known[i].text, n, hex);
        assert_string_equal(hex, known[i].hex);
        cld_sha256_begin(&h);
        cld_sha256_add(&h, known[i].text, half);
        cld_sha256_add(&h, known[i].text + half, n - half);
        cld_sha256_end(&h, hex);
        assert_string_equal(hex, known[i].hex);
    }
}

static void put(const char *dir, const char *name, const void *bytes, size_t n_bytes)
{
    struct cld_error err;
    char *path = cld_format("%s/%s", dir, name);
    assert_int_equal(cld_file_write(path, bytes, n_bytes, &err), CLD_OK);
    free(path);
}

/* A million times "a" (FIPS 180-2, B.3), larger than the piece that is read at once. */
static void file_hash(void **state)
{
    enum { n = 1000000 };
    struct cld_error err;
    char hex[CLD_SHA256_HEX_BYTES], *text = malloc(n);
    uint64_t n_bytes;
    char *path = cld_format("%s/a", (char *)*state);
    assert_non_null(text);
    memset(text, 'a', n);
    put(*state, "a", text, n);
    assert_int_equal(cld_sha256_file(path, hex, &n_bytes, &err), CLD_OK);
    assert_int_equal(n_bytes, n);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    assert_int_equal(cld_sha256_file(*state, hex, &n_bytes, &err), CLD_E_INPUT);
    free(text);
    free(path);
}

/* Writes a manifest over three files; the text of the manifest is freed by the caller. */
static char *three_files(const char *dir)
{
    struct cld_error err;
    char *path = cld_format("%s/" CLD_MANIFEST_NAME, dir), *text;
    size_t n_bytes;
    put(dir, "weights", "0123456789", 10);
    put(dir, "state.json", "{}", 2);
    put(dir, "empty", "", 0);
    assert_int_equal(cld_manifest_write(dir, &err), CLD_OK);
    assert_int_equal(cld_file_read(path, 0, &text, &n_bytes, &err), CLD_OK);
    free(path);
    return text;
}

static void verifies_and_repeats(void **state)
{
    struct cld_error err;
    char *first = three_files(*state), *again = three_files(*state);
    assert_string_equal(first, again); /* sorted, and the manifest does not list itself */
    assert_non_null(strstr(first, "\"empty\""));
    assert_non_null(strstr(first, known[0].hex));
    assert_null(strstr(first, "\"" CLD_MANIFEST_NAME));
    assert_int_equal(cld_manifest_verify(*state, &err), CLD_OK);
    put(*state, "note added later", "x", 1);
    assert_int_equal(cld_manifest_verify(*state, &err), CLD_OK);
    free(first);
    free(again);
}

static void names_what_differs(void **state)
{
    struct cld_error err;
    char *path = cld_format("%s/empty", (char *)*state);
    free(three_files(*state));
    put(*state, "weights", "0123456780", 10);
    assert_int_equal(cld_manifest_verify(*state, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "1 of 3 files"));
    assert_non_null(strstr(err.what, "weights has another SHA-256"));
    put(*state, "state.json", "{", 1);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(cld_manifest_verify(*state, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "3 of 3 files"));
    assert_non_null(strstr(err.what, "empty is missing"));
    assert_non_null(strstr(err.what, "state.json has 1 bytes, not 2"));
    assert_int_equal(mkdir(path, 0755), 0); /* no file of that name is still no file */
    assert_int_equal(cld_manifest_verify(*state, &err), CLD_E_INPUT);
    free(path);
}

static void bad_manifests(void **state)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "bad JSON"},
        {"{\"format\":\"cldraft-manifest-1\",\"files\":[", "bad JSON"},
        {"[]", "not of the format"},
        {"{\"files\":[]}", "not of the format"},
        {"{\"format\":\"cldraft-manifest-2\",\"files\":[]}", "not of the format"},
        {"{\"format\":\"cldraft-manifest-1\"}", "not of the format"},
        {"{\"format\":\"cldraft-manifest-1\",\"files\":[1]}", "entry 0"},
        {"{\"format\":\"cldraft-manifest-1\",\"files\":[{\"name\":\"a\",\"bytes\":1}]}", "entry 0"},
        {"{\"format\":\"cldraft-manifest-1\",\"files\":[{\"name\":\"../a\",\"bytes\":1,"
         "\"sha256\":\"\"}]}",
         "entry 0"},
    };
    struct cld_error err;
    assert_int_equal(cld_manifest_verify(*state, &err), CLD_E_INPUT); /* none at all */
    assert_non_null(strstr(err.what, CLD_MANIFEST_NAME ": cannot open"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put(*state, CLD_MANIFEST_NAME, bad[i].text, strlen(bad[i].text));
        if (cld_manifest_verify(*state, &err) != CLD_E_INPUT || !strstr(err.what, bad[i].says))
            fail_msg("%s: \"%s\"", bad[i].text, err.what);
    }
}

static void only_regular_files(void **state)
{
    struct cld_error err;
    char *sub = cld_format("%s/sub", (char *)*state);
    assert_int_equal(mkdir(sub, 0755), 0);
    assert_int_equal(cld_manifest_write(*state, &err), CLD_E_INPUT);
    assert_non_null(strstr(err.what, "sub: not a regular file"));
    assert_int_equal(cld_manifest_write("/nonexistent", &err), CLD_E_IO);
    free(sub);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, make_temp_dir, remove_temp_dir)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_hashes), TEST(file_hash),     TEST(verifies_and_repeats),
        TEST(names_what_differs),       TEST(bad_manifests), TEST(only_regular_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
