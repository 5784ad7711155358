from transport.octets cimport put16

cdef long long _ROCE_PORT
cdef long long _UDP
cdef long long _DONT_FRAGMENT

cpdef Py_ssize_t pseudo_header(
    unsigned char[::1] out,
    bytes src,
    bytes dst,
    unsigned long long source_port,
    unsigned long long udp_length,
    unsigned long long identification,
) except -1
