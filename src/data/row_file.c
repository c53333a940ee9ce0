#include "data/row_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct cld_row_file {
    char *path;
    FILE *in;
    char *text;
    size_t capacity, n_lines;
    bool begun; /* a line that is not blank was read */
};

/* How files of other kinds begin. */
static const struct kind {
    const char *bytes;
    size_t n;
    const char *name, *hint;
} kinds[] = {
    {"\x1f\x8b", 2, "compressed by gzip", "unpack it with gzip -d"},
    {"\x28\xb5\x2f\xfd", 4, "compressed by zstd", "unpack it with zstd -d"},
    {"\xfd\x37zXZ\0", 6, "compressed by xz", "unpack it with xz -d"},
    {"BZh", 3, "compressed by bzip2", "unpack it with bzip2 -d"},
    {"\x04\x22\x4d\x18", 4, "compressed by lz4", "unpack it with lz4 -d"},
    {"PK\x03\x04", 4, "a zip archive", "unpack it"},
    {"PAR1", 4, "a Parquet file", "convert it to JSON Lines"},
    {"ARROW1", 6, "an Arrow file", "convert it to JSON Lines"},
    {"\xff\xff\xff\xff", 4, "an Arrow stream", "convert it to JSON Lines"},
    {"\x89HDF", 4, "an HDF5 file", "convert it to JSON Lines"},
    {"SQLite format 3", 15, "an SQLite database", "convert it to JSON Lines"},
    {"\x93NUMPY", 6, "a NumPy array", "convert it to JSON Lines"},
    {"\xff\xfe\0\0", 4, "UTF-32 text", "convert it to UTF-8 with iconv"},
    {"\0\0\xfe\xff", 4, "UTF-32 text", "convert it to UTF-8 with iconv"},
    {"\xff\xfe", 2, "UTF-16 text", "convert it to UTF-8 with iconv -f UTF-16 -t UTF-8"},
    {"\xfe\xff", 2, "UTF-16 text", "convert it to UTF-8 with iconv -f UTF-16 -t UTF-8"},
    {"{\0", 2, "UTF-16 text", "convert it to UTF-8 with iconv -f UTF-16LE -t UTF-8"},
    {"\0{", 2, "UTF-16 text", "convert it to UTF-8 with iconv -f UTF-16BE -t UTF-8"},
    {"[\0", 2, "UTF-16 text", "convert it to UTF-8 with iconv -f UTF-16LE -t UTF-8"},
    {"\0[", 2, "UTF-16 text", "convert it to UTF-8 with iconv -f UTF-16BE -t UTF-8"},
    {"version https://git-lfs", 23, "a Git LFS pointer, not the file itself",
     "fetch it with git lfs pull"},
    {"<!DOCTYPE", 9, "an HTML page", "download the file itself"},
    {"<html", 5, "an HTML page", "download the file itself"},
};

void cld_row_file_close(struct cld_row_file *f)
{
    if (!f)
        return;
    if (f->in)
        fclose(f->in);
    free(f->text);
    free(f->path);
    free(f);
}

enum cld_status cld_row_file_open(const char *path, struct cld_row_file **out,
                                  struct cld_error *err)
{
    enum cld_status s = CLD_OK;
    struct cld_row_file *f = calloc(1, sizeof *f);
    struct stat at;
    *out = NULL;
    if (!f || !(f->path = strdup(path)))
        s = cld_fail_memory(err, "a file of rows");
    else if (!(f->in = fopen(path, "rb")))
        s = cld_fail(err, CLD_E_INPUT, "check the path and its permissions", "%s: cannot open: %s",
                     path, strerror(errno));
    else if (!fstat(fileno(f->in), &at) && S_ISDIR(at.st_mode))
        s = cld_fail(err, CLD_E_INPUT, "name its files, for example DIRECTORY/*.jsonl",
                     "%s is a directory", path);
    if (!s) {
        *out = f;
        f = NULL;
    }
    cld_row_file_close(f);
    return s;
}

/* What the first line that is not blank says about the file. */
static enum cld_status check_kind(const struct cld_row_file *f, const char *text, size_t n,
                                  struct cld_error *err)
{
    size_t blank = strspn(text, " \t\r\n");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (n >= kinds[i].n && !memcmp(text, kinds[i].bytes, kinds[i].n))
            return cld_fail(err, CLD_E_INPUT, kinds[i].hint, "%s is %s, not JSON Lines", f->path,
                            kinds[i].name);
    if (text[blank] == '[')
        return cld_fail(err, CLD_E_INPUT, "write one row a line, for example with jq -c '.[]'",
                        "%s is a JSON array, not one row a line (JSON Lines)", f->path);
    if (text[blank] == '{' && strspn(text + blank + 1, " \t\r\n") == n - blank - 1)
        return cld_fail(err, CLD_E_INPUT, "write one row a line, for example with jq -c .",
                        "%s is JSON over several lines, not one row a line (JSON Lines)", f->path);
    return CLD_OK;
}

enum cld_status cld_row_file_next(struct cld_row_file *f, char **text, size_t *n, size_t *number,
                                  struct cld_error *err)
{
    static const char mark[] = "\xef\xbb\xbf"; /* UTF-8's byte order mark */
    ssize_t got = getline(&f->text, &f->capacity, f->in);
    *text = NULL;
    *n = 0;
    if (got < 0)
        return ferror(f->in)
                   ? cld_fail(err, CLD_E_INPUT, "check that the file is whole and the disk works",
                              "%s: read failed: %s", f->path, strerror(errno))
                   : CLD_OK;
    *number = ++f->n_lines;
    *text = f->text;
    *n = (size_t)got;
    if (*n >= 3 && !memcmp(*text, mark, 3)) {
        *text += 3;
        *n -= 3;
    }
    while (*n && ((*text)[*n - 1] == '\n' || (*text)[*n - 1] == '\r'))
        (*text)[--*n] = '\0';
    if (f->begun || strspn(*text, " \t") == *n)
        return CLD_OK;
    f->begun = true;
    return check_kind(f, *text, *n, err);
}
