cpdef unsigned long long mix(unsigned long long value)
