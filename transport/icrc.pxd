cpdef Py_ssize_t pseudo_header(
    unsigned char[::1] out,
    bytes src,
    bytes dst,
    unsigned long long source_port,
    unsigned long long udp_length,
    unsigned long long identification,
) except -1
