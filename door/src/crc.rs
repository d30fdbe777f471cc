//! CRC32C (Castagnoli), by the processor's instruction where it has one.

const POLYNOMIAL: u32 = 0x82f6_3b78;
const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut made = [0u32; 256];
    let mut at = 0;
    while at < 256 {
        let mut value = at as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { value >> 1 ^ POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        made[at] = value;
        at += 1;
    }
    made
}

/// Return the CRC32C of `data`.
pub fn crc32c(data: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instruction, as the line above has asked.
        return unsafe { by_instruction(data) };
    }
    by_table(data)
}

/// Return the CRC32C of `data` on any processor.
pub fn by_table(data: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in data {
        crc = TABLE[((crc ^ u32::from(*byte)) & 255) as usize] ^ crc >> 8;
    }
    !crc
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
unsafe fn by_instruction(data: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u64, _mm_crc32_u8};
    let mut crc = u64::from(!0u32);
    let mut eights = data.chunks_exact(8);
    for eight in &mut eights {
        crc = _mm_crc32_u64(crc, u64::from_le_bytes(eight.try_into().expect("eight bytes")));
    }
    let mut crc = crc as u32;
    for byte in eights.remainder() {
        crc = _mm_crc32_u8(crc, *byte);
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::{by_table, crc32c};

    #[test]
    fn both_ways_agree_with_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let data: Vec<u8> = (0..1000u32).map(|at| (at * 7 % 251) as u8).collect();
        for end in 0..data.len() {
            assert_eq!(crc32c(&data[..end]), by_table(&data[..end]));
        }
    }
}
