cpdef long long unwrap(long long wire, long long reference) noexcept
