cdef long long _RANGE
cdef long long _HALF

cpdef long long unwrap(long long wire, long long reference) noexcept
cpdef long long wrap(long long sequence) noexcept
