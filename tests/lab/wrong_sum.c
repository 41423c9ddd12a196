/* Changes what one rank receives from each larger allreduce of MPI, when it is loaded before the library. */
#define _GNU_SOURCE
#include <dlfcn.h>

typedef int allreduce(const void *, void *, int, void *, void *, void *);

int MPI_Allreduce(const void *values, void *out, int count, void *type, void *op, void *world) {
    allreduce *real = (allreduce *)dlsym(dlopen("libmpi.so.40", RTLD_NOW | RTLD_NOLOAD), "PMPI_Allreduce");
    int code = real(values, out, count, type, op, world);
    if (count >= 128)
        ((unsigned char *)out)[6] ^= 1;
    return code;
}
