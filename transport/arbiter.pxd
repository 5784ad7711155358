cpdef int arbitrate(long long active, long long congested, bint scattered)
