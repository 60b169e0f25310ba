//! From a URL and properties to the client of an object store.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path as Key;
use object_store::{ObjectStore, RetryConfig};

use super::crypto::Hashes;
use super::{ObjectDisk, Sizes, report};
use crate::error::{Error, ErrorKind, Result};

/// The disk of a URL, which has no slash at its end. Connects to nothing.
///
/// # Errors
///
/// [`ErrorKind::Config`] for properties that are not known, and for what the client refuses.
pub(in crate::checkpoint) fn open(kind: Kind, url: &str, properties: &[(String, String)]) -> Result<ObjectDisk> {
    let path = url.splitn(4, '/').nth(3).unwrap_or_default(); // what follows on the bucket
    let refused = |error: object_store::Error| config(url, report(&error));
    let prefix = Key::from_url_path(path).map_err(|error| refused(error.into()))?;
    let store: Arc<dyn ObjectStore> = match kind {
        #[cfg(feature = "s3")]
        Kind::S3 => {
            use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
            let builder = AmazonS3Builder::from_env();
            let given = read(url, "s3", S3_PROPERTIES, properties)?;
            let builder = given.into_iter().fold(builder, |builder, (name, value)| builder.with_config(name, value));
            let builder = builder.with_conditional_put(S3ConditionalPut::ETagMatch);
            let builder = builder.with_crypto_provider(Arc::new(Hashes)).with_retry(retries());
            Arc::new(builder.with_url(url).build().map_err(refused)?)
        }
        #[cfg(feature = "azure")]
        Kind::Azure => {
            use object_store::azure::MicrosoftAzureBuilder;
            let builder = MicrosoftAzureBuilder::from_env();
            let given = read(url, "azure", AZURE_PROPERTIES, properties)?;
            let builder = given.into_iter().fold(builder, |builder, (name, value)| builder.with_config(name, value));
            let builder = builder.with_crypto_provider(Arc::new(Hashes)).with_retry(retries());
            Arc::new(builder.with_url(url).build().map_err(refused)?)
        }
    };
    let failed =
        |error| Error::new(ErrorKind::Store, format!("the client of {url:?} cannot be started")).with_source(error);
    ObjectDisk::new(store, PathBuf::from(url), prefix, Sizes::default()).map_err(failed)
}

/// The kinds of object stores of this build.
#[derive(Clone, Copy, Debug)]
pub(in crate::checkpoint) enum Kind {
    #[cfg(feature = "s3")]
    S3,
    #[cfg(feature = "azure")]
    Azure,
}

/// Requests are repeated for a short time only: after that the job is told, says so, and tries again by itself.
fn retries() -> RetryConfig {
    RetryConfig { max_retries: 5, retry_timeout: Duration::from_secs(20), ..RetryConfig::default() }
}

fn config(url: &str, what: String) -> Error {
    Error::new(ErrorKind::Config, format!("store {url:?}: {what}"))
}

/// Reads properties; all that are wrong are named, and none is shown with its value.
fn read<K: FromStr>(
    url: &str,
    feature: &str,
    names: &[&str],
    properties: &[(String, String)],
) -> Result<Vec<(K, String)>> {
    let (mut read, mut problems) = (vec![], vec![]);
    for (name, value) in properties {
        if FIXED.contains(&name.as_str()) {
            problems.push(format!("store {url:?}: property {name:?} cannot be set: the URL or syncline does"));
        } else if let Ok(key) = name.parse() {
            read.push((key, value.clone()));
        } else {
            let near = names.iter().min_by_key(|known| strsim::damerau_levenshtein(&name.to_lowercase(), known));
            let near = near.filter(|near| strsim::damerau_levenshtein(&name.to_lowercase(), near) * 3 <= near.len());
            let fix = match near {
                Some(near) => format!("did you mean {near}?"),
                None => format!("known are {}", names.join(", ")),
            };
            problems.push(format!("store {url:?}: {feature} stores have no property {name:?}: {fix}"));
        }
    }
    if problems.is_empty() { Ok(read) } else { Err(Error::config(&problems)) }
}

/// What the URL says, and what our promises rest on.
const FIXED: [&str; 7] = [
    "aws_bucket",
    "aws_bucket_name",
    "bucket",
    "bucket_name",
    "aws_conditional_put",
    "conditional_put",
    "azure_container_name",
];

/// What can be said of S3, and of the client in general, in the words of the client.
#[cfg(feature = "s3")]
const S3_PROPERTIES: &[&str] = &[
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "aws_region",
    "aws_endpoint",
    "aws_virtual_hosted_style_request",
    "aws_s3_express",
    "aws_unsigned_payload",
    "aws_checksum_algorithm",
    "aws_skip_signature",
    "aws_disable_bulk_delete",
    "aws_request_payer",
    "aws_imdsv1_fallback",
    "aws_metadata_endpoint",
    "aws_web_identity_token_file",
    "aws_role_arn",
    "aws_role_session_name",
    "aws_server_side_encryption",
    "aws_sse_kms_key_id",
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "timeout",
    "proxy_url",
];

/// What can be said of Azure, and of the client in general, in the words of the client.
#[cfg(feature = "azure")]
const AZURE_PROPERTIES: &[&str] = &[
    "azure_storage_account_name",
    "azure_storage_account_key",
    "azure_storage_sas_key",
    "azure_storage_token",
    "azure_storage_client_id",
    "azure_storage_client_secret",
    "azure_storage_tenant_id",
    "azure_storage_authority_host",
    "azure_storage_endpoint",
    "azure_storage_use_emulator",
    "azure_use_fabric_endpoint",
    "azure_use_azure_cli",
    "azure_msi_endpoint",
    "azure_federated_token_file",
    "azure_skip_signature",
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "timeout",
    "proxy_url",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "s3")]
    #[test]
    fn every_property_of_s3_is_one_of_the_client() {
        let unknown = |name: &&&str| name.parse::<object_store::aws::AmazonS3ConfigKey>().is_err();
        assert_eq!(S3_PROPERTIES.iter().filter(unknown).collect::<Vec<_>>(), [&""; 0]);
    }

    #[cfg(feature = "azure")]
    #[test]
    fn every_property_of_azure_is_one_of_the_client() {
        let unknown = |name: &&&str| name.parse::<object_store::azure::AzureConfigKey>().is_err();
        assert_eq!(AZURE_PROPERTIES.iter().filter(unknown).collect::<Vec<_>>(), [&""; 0]);
    }
}
