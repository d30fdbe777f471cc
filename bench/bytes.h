/* Read numbers of the network's byte order at any address. */
#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t get16(const unsigned char *at) { return (uint16_t)(at[0] << 8 | at[1]); }

static inline uint32_t get32(const unsigned char *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return be32toh(value);
}

static inline int64_t get64(const unsigned char *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return (int64_t)be64toh(value);
}
