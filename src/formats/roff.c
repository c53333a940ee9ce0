#include "formats/roff.h"

#include <string.h>

static void put(const char *text, size_t n, FILE *to)
{
    if (n && *text == '.') /* at the start of a line it would be a request; \& is nothing */
        fputs("\\&", to);
    for (; n--; text++)
        switch (*text) {
        case '\\':
            fputs("\\e", to);
            break;
        case '-':
            fputs("\\-", to);
            break;
        case '\'':
            fputs("\\(aq", to);
            break;
        case '`':
            fputs("\\(ga", to);
            break;
        case '^':
            fputs("\\(ha", to);
            break;
        case '~':
            fputs("\\(ti", to);
            break;
        default:
            fputc(*text, to);
        }
}

void cld_roff_text(const char *text, FILE *to)
{
    put(text, strlen(text), to);
}

/* A sentence begins a line, as is the custom, and a line has about 64 bytes before escapes. */
void cld_roff_lines(const char *text, const char *end, FILE *to)
{
    size_t column = 0;
    while (*text) {
        size_t n = strcspn(text, " ");
        put(text, n, to);
        column += n + 1;
        const char *next = text + n + strspn(text + n, " ");
        if (*next) {
            int breaks = text[n - 1] == '.' || column + strcspn(next, " ") > 64;
            fputc(breaks ? '\n' : ' ', to);
            column = breaks ? 0 : column;
        }
        text = next;
    }
    fprintf(to, "%s\n", end);
}
