cpdef long long transmit_time(long long size, long long rate)
