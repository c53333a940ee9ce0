#include "formats/wrap.h"

#include <string.h>

enum { columns = 100 };

void cld_write_wrapped(const char *text, size_t column, size_t indent, FILE *to)
{
    while (*text) {
        if (!column)
            fprintf(to, "%*s", (int)indent, "");
        size_t most = columns - (column ? column : indent), n = strlen(text);
        if (n > most)
            for (n = most; n && text[n] != ' '; n--)
                ;
        if (!n) /* a word that is longer than a line */
            n = strcspn(text, " ");
        fprintf(to, "%.*s\n", (int)n, text);
        text += n;
        text += strspn(text, " ");
        column = 0;
    }
}
