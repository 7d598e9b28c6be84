/* Whether a C library loads the native engine, and computes with it: LIBRARY NAME...

   Every name is looked up, and one function is called. */

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

int main(int count, char **arguments) {
    void *library = dlopen(arguments[1], RTLD_NOW);
    for (int k = 2; library && k < count; k++)
        if (!dlsym(library, arguments[k])) library = NULL;
    if (!library) return puts(dlerror()), 1;
    double (*sum)(const double *, int64_t);
    *(void **)&sum = dlsym(library, "correctly_rounded_sum");
    double values[] = {0.1, 0.2, 0.3}; /* 0.1 + 0.2 + 0.3 is 0.6000000000000001 */
    return sum(values, 3) != 0.6;
}
