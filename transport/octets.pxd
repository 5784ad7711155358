cpdef void put16(unsigned char[::1] out, Py_ssize_t at, unsigned long long value) noexcept
cpdef void put32(unsigned char[::1] out, Py_ssize_t at, unsigned long long value) noexcept
cpdef unsigned long long get24(const unsigned char[::1] data, Py_ssize_t at) noexcept
cpdef unsigned long long get32(const unsigned char[::1] data, Py_ssize_t at) noexcept
