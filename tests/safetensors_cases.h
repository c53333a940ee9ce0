/* safetensors_cases.h - one small file for every rule of the format, most of them broken.
 *
 * A file is made from its header text and a number of data bytes (0, 1, 2, ...), so that the table
 * reads as the rules do. test_safetensors.c expects each verdict; test_fuzz_safetensors.c mutates
 * the files. */
#ifndef SAFETENSORS_CASES_H
#define SAFETENSORS_CASES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CLAIM_TRUE 0u         /* the length field says how long the header is */
#define CLAIM_NONE UINT64_MAX /* no length field at all: `header` is the whole file */

struct safetensors_case {
    const char *rule;
    const char *header;
    size_t n_data;
    const char *says; /* part of the message; NULL: the file is good */
    uint64_t claim;   /* what the length field says instead */
};

#define X8(s)   s s s s s s s s
#define X512(s) X8(X8(X8(s)))
/* One F32 tensor named t, of shape and range. */
#define T(shape, range) "{\"t\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" range "}}"
#define E(name, range)  "\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" range "}"

/* Ten entries of one range. */
#define E_10(range)                                                                                \
    E("a", range)                                                                                  \
    "," E("b", range) "," E("c", range) "," E("d", range) "," E("e", range) "," E(                 \
        "f", range) "," E("g", range) "," E("h", range) "," E("i", range) "," E("j", range)

/* clang-format off */
#define GOOD(rule, header, n_data)              {rule, header, n_data, NULL, CLAIM_TRUE}
#define BAD(rule, header, n_data, says)         {rule, header, n_data, says, CLAIM_TRUE}
#define LIES(rule, header, n_data, says, claim) {rule, header, n_data, says, claim}
/* clang-format on */

static const struct safetensors_case safetensors_cases[] = {
    /* good */
    GOOD("no tensors", "{}", 0),
    GOOD("one tensor", T("[2,3]", "[0,24]"), 24),
    GOOD("white space around the header", " \n" T("[1]", "[0,4]") "   ", 4),
    GOOD("scalar", T("[]", "[0,4]"), 4),
    GOOD("empty tensor", T("[3,0]", "[0,0]"), 0),
    GOOD("empty tensor between others",
         "{" E("a", "[0,4]") "," E("c", "[4,8]") ",\"b\":{\"dtype\":\"F32\",\"shape\":[0],"
                                                 "\"data_offsets\":[4,4]}}",
         8),
    GOOD("eight dimensions", T("[1,1,1,1,1,1,1,2]", "[0,8]"), 8),
    GOOD("name of 512 bytes", "{" E(X512("n"), "[0,4]") "}", 4),
    GOOD("ranges in another order than names", "{" E("a", "[4,8]") "," E("b", "[0,4]") "}", 8),
    GOOD("metadata",
         "{\"__metadata__\":{\"format\":\"pt\",\"note\":\"\\u00e4\"}," E("a", "[0,4]") "}", 4),
    GOOD("type that only the format knows",
         "{\"t\":{\"dtype\":\"F8_E4M3\",\"shape\":[2,3],\"data_offsets\":[0,6]}}", 6),
    GOOD("four-bit elements", "{\"t\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[0,3]}}",
         3),

    /* the length field */
    LIES("empty file", "", 0, "too short", CLAIM_NONE),
    LIES("file of seven bytes", "1234567", 0, "too short", CLAIM_NONE),
    LIES("header over the limit", "{}", 0, "at most 100000000", 100000001),
    LIES("header length with its top bit set", "{}", 0, "at most 100000000", UINT64_MAX - 8),
    LIES("header longer than the file", "{}", 8, "claims a header of 11 bytes, the file has 18",
         11),
    LIES("header cut", T("[1]", "[0,4]"), 4, "bad JSON", 20),

    /* the JSON */
    BAD("empty header", "", 0, "bad JSON"),
    BAD("not JSON", "hello", 0, "bad JSON"),
    BAD("not UTF-8", "{" E("\xff", "[0,4]") "}", 4, "bad JSON"),
    BAD("NUL in a name", "{" E("a\\u0000b", "[0,4]") "}", 4, "bad JSON"),
    BAD("array at the top", "[1]", 0, "not an object"),
    BAD("text after the object", "{} x", 0, "bad JSON"),
    BAD("second object", "{}{}", 0, "bad JSON"),
    BAD("duplicate tensor", "{" E("a", "[0,4]") "," E("a", "[4,8]") "}", 8, "duplicate"),
    BAD("duplicate by escape", "{" E("a", "[0,4]") "," E("\\u0061", "[4,8]") "}", 8, "duplicate"),
    BAD("duplicate field",
        "{\"t\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
        "duplicate"),
    BAD("duplicate metadata", "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "duplicate"),
    BAD("two metadata", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate"),
    BAD("nested too deep", "{\"t\":{\"a\":[[[1]]]}}", 0, "nested deeper than 4"),
    BAD("metadata not an object", "{\"__metadata__\":[]}", 0, "__metadata__ is not an object"),
    BAD("metadata not of strings", "{\"__metadata__\":{\"a\":1}}", 0,
        "__metadata__ entry a is not a string"),

    /* an entry */
    BAD("entry not an object", "{\"t\":7}", 0, "tensor t: its entry is not an object"),
    BAD("no dtype", "{\"t\":{\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "tensor t: needs"),
    BAD("no shape", "{\"t\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}", 4, "tensor t: needs"),
    BAD("no range", "{\"t\":{\"dtype\":\"U8\",\"shape\":[4]}}", 4, "tensor t: needs"),
    BAD("further field",
        "{\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4],\"strides\":[1]}}", 4,
        "has 4 fields"),
    BAD("dtype not a string", "{\"t\":{\"dtype\":1,\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
        "tensor t: needs"),
    BAD("dtype unknown", "{\"t\":{\"dtype\":\"F7\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
        "unknown dtype F7"),
    BAD("dtype in lower case", "{\"t\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
        4, "unknown dtype f32"),
    BAD("name of 513 bytes", "{" E(X512("n") "n", "[0,4]") "}", 4, "its name has 513 bytes"),
    BAD("nine dimensions", T("[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "9 dimensions"),
    BAD("shape not an array", T("4", "[0,4]"), 4, "tensor t: needs"),
    BAD("negative dimension", T("[-1]", "[0,4]"), 4, "shape[0] is not"),
    BAD("fractional dimension", T("[2,1.0]", "[0,8]"), 8, "shape[1] is not"),
    BAD("dimension as text", T("[\"1\"]", "[0,4]"), 4, "shape[0] is not"),
    BAD("dimension of 2^64-2", T("[2,18446744073709551614]", "[0,4]"), 4, "too big integer"),
    BAD("product overflows", T("[2,2,9223372036854775807]", "[0,4]"), 4, "overflows at"),
    BAD("product overflows to a plausible size", T("[4294967296,4294967296]", "[0,0]"), 0,
        "overflows at"),
    BAD("product overflows before a zero", T("[4294967296,4294967296,0]", "[0,0]"), 0,
        "overflows at"),
    BAD("bits overflow", T("[2,9223372036854775807]", "[0,4]"), 4, "of 32 bits overflow"),
    BAD("four-bit elements in half a byte",
        "{\"t\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "whole bytes"),

    /* the ranges */
    BAD("one offset", T("[1]", "[4]"), 4, "two non-negative integers"),
    BAD("three offsets", T("[1]", "[0,4,4]"), 4, "two non-negative integers"),
    BAD("negative offset", T("[1]", "[-4,0]"), 4, "two non-negative integers"),
    BAD("fractional offset", T("[1]", "[0,4.0]"), 4, "two non-negative integers"),
    BAD("range backwards", T("[1]", "[4,0]"), 4, "run backwards"),
    BAD("range longer than the tensor", T("[1]", "[0,8]"), 8,
        "hold 8 bytes, its shape and F32 need 4"),
    BAD("range shorter than the tensor", T("[2]", "[0,4]"), 4,
        "hold 4 bytes, its shape and F32 need 8"),
    BAD("two bytes missing at the end", T("[2]", "[0,8]"), 6, "reach past the 6 bytes"),
    BAD("range far beyond the file", T("[1]", "[9223372036854775803,9223372036854775807]"), 4,
        "reach past the 4 bytes"),
    BAD("bytes after the last tensor", T("[1]", "[0,4]"), 6, "2 bytes of data after"),
    BAD("data without tensors", "{}", 4, "4 bytes of data after"),
    BAD("hole at the start", T("[1]", "[4,8]"), 8, "a hole"),
    BAD("hole between tensors", "{" E("a", "[0,4]") "," E("b", "[5,9]") "}", 9, "a hole"),
    BAD("overlap", "{" E("a", "[0,4]") "," E("b", "[3,7]") "}", 7, "an overlap"),
    BAD("empty tensor inside another",
        "{" E("a", "[0,4]") ",\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}}", 4,
        "an overlap"),
    BAD("ten tensors on one range", "{" E_10("[0,4]") "}", 4, "an overlap"),
};

#define N_SAFETENSORS_CASES (sizeof safetensors_cases / sizeof *safetensors_cases)

/* The file's bytes; freed by the caller. */
static unsigned char *safetensors_case_bytes(const struct safetensors_case *c, size_t *n_bytes)
{
    size_t n_header = strlen(c->header), at = 0;
    unsigned char *bytes = malloc(8 + n_header + c->n_data + 1);
    if (!bytes)
        abort();
    if (c->claim != CLAIM_NONE) {
        uint64_t claim = c->claim == CLAIM_TRUE ? n_header : c->claim;
        memcpy(bytes, &claim, sizeof claim);
        at = sizeof claim;
    }
    memcpy(bytes + at, c->header, n_header);
    at += n_header;
    for (size_t i = 0; i < c->n_data; i++)
        bytes[at++] = (unsigned char)i;
    *n_bytes = at;
    return bytes;
}

#undef X8
#undef X512
#undef T
#undef E
#undef E_10
#undef GOOD
#undef BAD
#undef LIES

#endif
