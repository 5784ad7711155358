cpdef bytes encode(object control)
cpdef object decode(bytes data, bint reliable)
cpdef bint is_reliable(long long kind) noexcept
