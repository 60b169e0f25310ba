//! Whole numbers in as few bytes as they need: seven bits a byte, the lowest first (LEB128).

use bytes::BufMut;

/// Bytes of the longest number.
pub(crate) const MAX_BYTES: usize = 10;

/// Appends a number.
#[inline]
pub(crate) fn put(mut number: u64, out: &mut impl BufMut) {
    while number >= 0x80 {
        out.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

/// The number at the front of `bytes` and how many of them it takes; `None` if they do not begin with a number.
#[inline]
pub(crate) fn get(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut number = 0;
    for (at, byte) in bytes.iter().take(MAX_BYTES).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * at);
        if *byte < 0x80 {
            return Some((number, at + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(number: u64, shift in 0u32..64, rest: Vec<u8>) {
            let mut bytes = Vec::new();
            put(number >> shift, &mut bytes);
            let length = bytes.len();
            prop_assert!(length <= MAX_BYTES);
            prop_assert_eq!(get(&bytes[..length - 1]), None);
            bytes.extend(rest);
            prop_assert_eq!(get(&bytes), Some((number >> shift, length)));
        }
    }

    #[test]
    fn what_never_ends_is_no_number() {
        assert_eq!((get(&[]), get(&[0xff; 20])), (None, None));
        assert_eq!(get(&[0x80, 0x01]), Some((128, 2)));
    }
}
