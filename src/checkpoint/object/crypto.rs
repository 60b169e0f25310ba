//! The hashes with which requests are signed.

use hmac::{HmacReset, KeyInit, Mac};
use object_store::client::{CryptoProvider, DigestAlgorithm, DigestContext, HmacContext, Signer, SigningAlgorithm};
use object_store::{Error, Result};
use sha2::{Digest, Sha256};

/// SHA-256 and its HMAC: all that S3 and Azure ask for.
#[derive(Debug)]
pub(super) struct Hashes;

fn unknown(what: &dyn std::fmt::Debug) -> Error {
    Error::NotSupported { source: format!("{what:?} is not among the hashes of this build").into() }
}

impl CryptoProvider for Hashes {
    fn digest(&self, algorithm: DigestAlgorithm) -> Result<Box<dyn DigestContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => Ok(Box::new(Running { state: Sha256::new(), sum: [0; 32] })),
            other => Err(unknown(&other)),
        }
    }
    fn hmac(&self, algorithm: DigestAlgorithm, secret: &[u8]) -> Result<Box<dyn HmacContext>> {
        match algorithm {
            DigestAlgorithm::Sha256 => {
                let state = HmacReset::<Sha256>::new_from_slice(secret)
                    .map_err(|error| Error::NotSupported { source: Box::new(error) })?;
                Ok(Box::new(Running { state, sum: [0; 32] }))
            }
            other => Err(unknown(&other)),
        }
    }
    fn sign(&self, algorithm: SigningAlgorithm, _pem: &[u8]) -> Result<Box<dyn Signer>> {
        Err(unknown(&algorithm))
    }
}

/// A sum that is being made, and the sum.
struct Running<S> {
    state: S,
    sum: [u8; 32],
}

impl DigestContext for Running<Sha256> {
    fn update(&mut self, data: &[u8]) {
        Digest::update(&mut self.state, data);
    }
    fn finish(&mut self) -> Result<&[u8]> {
        self.sum = self.state.finalize_reset().into();
        Ok(&self.sum)
    }
}

impl HmacContext for Running<HmacReset<Sha256>> {
    fn update(&mut self, data: &[u8]) {
        Mac::update(&mut self.state, data);
    }
    fn finish(&mut self) -> Result<&[u8]> {
        self.sum = self.state.finalize_reset().into_bytes().into();
        Ok(&self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The example of FIPS 180-4 and test cases 2 and 6 of RFC 4231.
    #[test]
    fn sums_are_those_of_the_standards() {
        let mut digest = Hashes.digest(DigestAlgorithm::Sha256).unwrap();
        digest.update(b"a");
        digest.update(b"bc");
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(digest.finish().unwrap()), sum);
        let cases = [
            (
                &b"Jefe"[..],
                &b"what do ya want for nothing?"[..],
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                &[0xaa; 131],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
        ];
        for (key, data, sum) in cases {
            let mut hmac = Hashes.hmac(DigestAlgorithm::Sha256, key).unwrap();
            hmac.update(data);
            assert_eq!(hex(hmac.finish().unwrap()), sum);
        }
        assert!(Hashes.sign(SigningAlgorithm::RS256, b"").is_err());
    }
}
