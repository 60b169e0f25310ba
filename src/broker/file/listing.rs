//! Which files are the splits of a topic.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use super::read_error;
use crate::error::{Error, ErrorKind, Result};

/// Numbers of splits are below it.
const MAX_NUMBER: u32 = 1 << 24;

/// How the text of a file is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl Packing {
    /// The packing that a file's name tells.
    pub fn of(name: &str) -> Self {
        match name.rsplit('.').next() {
            Some("gz") => Packing::Gzip,
            Some("zst") => Packing::Zstd,
            _ => Packing::Plain,
        }
    }

    /// The text of a packed file, from its beginning.
    pub fn unpack(self, file: File) -> io::Result<Box<dyn Read + Send>> {
        Ok(match self {
            Packing::Plain => Box::new(file),
            Packing::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(BufReader::new(file))),
            Packing::Zstd => Box::new(zstd::stream::read::Decoder::new(file)?),
        })
    }
}

/// A file of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub number: u32,
    pub name: String,
}

/// The files of a topic, by number.
pub(super) fn list(folder: &Path, topic: &str) -> Result<Vec<Found>> {
    let failed = |error: io::Error| {
        let not_found = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
        let kind = if not_found { ErrorKind::NotFound } else { ErrorKind::Read };
        let text = format!(
            "folder {folder:?} cannot be read; looked in it for \"{topic}.jsonl\", \"{topic}-pN.jsonl\" and \
             \"{topic}-N.jsonl\", plain, .gz or .zst"
        );
        Error::new(kind, text).with_source(error)
    };
    let mut all: Vec<Found> = vec![];
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Some(number) = number_of(topic, &name) else { continue };
        let number = number.ok_or_else(|| {
            let text = format!("file {:?}: the number of a split must be below {MAX_NUMBER}", entry.path());
            Error::new(ErrorKind::Config, text)
        })?;
        // Of the file that a link points to, not of the link. A file that is gone again is no file.
        if fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_file()) {
            all.push(Found { number, name });
        }
    }
    all.sort_by(|a, b| (a.number, &a.name).cmp(&(b.number, &b.name)));
    if let Some(pair) = all.windows(2).find(|pair| pair[0].number == pair[1].number) {
        let (one, two) = (folder.join(&pair[0].name), folder.join(&pair[1].name));
        let text = format!("{one:?} and {two:?} are both split {} of topic {topic:?}: remove one", pair[0].number);
        return Err(Error::new(ErrorKind::Config, text));
    }
    Ok(all)
}

/// The number in a file's name: `None` if it is no file of the topic, `Some(None)` if the number is too large.
pub(super) fn number_of(topic: &str, name: &str) -> Option<Option<u32>> {
    let rest = name.strip_prefix(topic)?;
    let rest = rest.strip_suffix(".gz").or_else(|| rest.strip_suffix(".zst")).unwrap_or(rest);
    let rest = rest.strip_suffix(".jsonl")?;
    if rest.is_empty() {
        return Some(Some(0));
    }
    let digits = rest.strip_prefix("-p").or_else(|| rest.strip_prefix('-'))?;
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    Some(digits.parse().ok().filter(|number| *number < MAX_NUMBER))
}

/// How long the text of a file is. A packed file is unpacked for it.
pub(super) fn text_len(path: &Path) -> Result<u64> {
    let failed = |error| read_error(path, "read", error);
    let file = File::open(path).map_err(failed)?;
    match Packing::of(&path.to_string_lossy()) {
        Packing::Plain => Ok(file.metadata().map_err(failed)?.len()),
        packing => {
            let mut text = packing.unpack(file).map_err(failed)?;
            io::copy(&mut text, &mut io::sink()).map_err(|error| read_error(path, "unpacked", error))
        }
    }
}

/// About how many lines end behind an offset of a plain file: counted in the first mebibyte, and the rest by their length.
pub(super) fn lines_behind(path: &Path, offset: u64) -> Result<u64> {
    use std::io::{Seek, SeekFrom};
    const COUNTED: u64 = 1 << 20;
    let failed = |error| read_error(path, "read", error);
    let mut file = File::open(path).map_err(failed)?;
    let left = file.metadata().map_err(failed)?.len().saturating_sub(offset);
    file.seek(SeekFrom::Start(offset)).map_err(failed)?;
    let mut text = vec![];
    file.take(COUNTED).read_to_end(&mut text).map_err(failed)?;
    let lines = memchr::memchr_iter(b'\n', &text).count() as u64;
    Ok(if left > COUNTED { (lines as f64 * left as f64 / COUNTED as f64).ceil().max(1.0) as u64 } else { lines })
}

/// The path of a split's file.
pub(super) fn path_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_numbers() {
        let number = |name| number_of("one", name);
        assert_eq!(number("one.jsonl"), Some(Some(0)));
        assert_eq!(number("one-p7.jsonl"), Some(Some(7)));
        assert_eq!(number("one-12.jsonl.gz"), Some(Some(12)));
        assert_eq!(number("one-p3.jsonl.zst"), Some(Some(3)));
        assert_eq!(number("one-16777215.jsonl"), Some(Some(16_777_215)));
        assert_eq!(number("one-16777216.jsonl"), Some(None));
        assert_eq!(number("one-99999999999999999999.jsonl"), Some(None));
        for other in ["one", "one.json", "ones.jsonl", "one-.jsonl", "one-p.jsonl", "one-x1.jsonl", "one-w0.jsonl"] {
            assert_eq!(number(other), None, "{other}");
        }
        assert_eq!(number("one-+1.jsonl"), None);
        assert_eq!(number("one.jsonl.bz2"), None);
    }

    #[test]
    fn the_same_number_twice_names_both_files() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["one-p1.jsonl", "one-1.jsonl.gz"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let error = list(folder.path(), "one").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("one-p1.jsonl") && error.to_string().contains("one-1.jsonl.gz"), "{error}");
        assert_eq!(list(folder.path(), "two").unwrap(), []);
    }

    #[test]
    fn a_missing_folder_says_what_was_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        let error = list(&folder.path().join("nowhere"), "one").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("nowhere") && error.to_string().contains("one-pN.jsonl"), "{error}");
    }
}
