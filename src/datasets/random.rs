//! Numbers that look random and are the same on every machine: splitmix64 (Steele, Lea, Flood, 2014).

/// A stream of 64-bit numbers that its seed decides.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads a number over all 64 bits; the same number gives the same result for ever.
pub(super) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(GOLDEN);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Random {
    /// Starts the stream of `seed`.
    pub(super) fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next number.
    pub(super) fn next(&mut self) -> u64 {
        let value = mix(self.0);
        self.0 = self.0.wrapping_add(GOLDEN);
        value
    }

    /// A number in [0, bound); 0 where the bound is 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in [0, 1), a multiple of 2^-53.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True in a share of `share` of all calls.
    pub(super) fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    /// One of several.
    pub(super) fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_published_splitmix64() {
        let mut random = Random::new(1_234_567);
        let published = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([random.next(), random.next(), random.next()], published);
    }

    #[test]
    fn shares_and_bounds_hold() {
        let mut random = Random::new(1);
        let hits = (0..100_000).filter(|_| random.chance(0.02)).count();
        assert!((1_800..2_200).contains(&hits), "{hits}");
        assert!((0..1_000).all(|_| random.below(7) < 7) && random.below(0) == 0);
    }
}
