//! Whether a folder holds the state of this job.

use std::path::Path;

use super::{Begin, Identity};
use crate::error::{Error, ErrorKind, Result};

/// Holds a job against the one that has written a folder.
///
/// # Errors
///
/// [`ErrorKind::Config`] if it is another one; or if settings differ and the changes are not accepted, with a line for each setting.
pub(super) fn check(folder: &Path, known: &Identity, begin: &Begin) -> Result<()> {
    let wanted = &begin.identity;
    if known.job != wanted.job {
        let text = format!(
            "folder {folder:?} holds the state of job {:?}, and this is job {:?}: give it a folder of its own",
            known.job, wanted.job
        );
        return Err(Error::new(ErrorKind::Config, text));
    }
    if begin.accept_changes || known.settings == wanted.settings {
        return Ok(());
    }
    let (lines, same) = table(&known.settings, &wanted.settings);
    if same {
        return Ok(()); // They are only said in another order.
    }
    let text = format!(
        "folder {folder:?} holds state that was made with other settings: use those, or go on with --accept_changes, or give the \
         job a new folder\n{}",
        lines.join("\n")
    );
    Err(Error::new(ErrorKind::Config, text))
}

type Settings = [(String, String)];

/// A line for each setting, and whether all are the same.
fn table(known: &Settings, wanted: &Settings) -> (Vec<String>, bool) {
    let find = |settings: &Settings, name: &str| {
        settings.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone())
    };
    let dropped = known.iter().filter(|(name, _)| find(wanted, name).is_none());
    let rows: Vec<(&str, &str, String)> = wanted
        .iter()
        .map(|(name, value)| match find(known, name) {
            Some(old) if old == *value => ("kept", name.as_str(), format!("{value:?}")),
            Some(old) => ("changed", name.as_str(), format!("{old:?} -> {value:?}")),
            None => ("new", name.as_str(), format!("-> {value:?}")),
        })
        .chain(dropped.map(|(name, value)| ("dropped", name.as_str(), format!("{value:?} ->"))))
        .collect();
    let width = rows.iter().map(|(_, name, _)| name.chars().count()).max().unwrap_or_default();
    let same = rows.iter().all(|(what, ..)| *what == "kept");
    (rows.into_iter().map(|(what, name, values)| format!("  {what:<7}  {name:<width$}  {values}")).collect(), same)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(job: &str, settings: &[(&str, &str)], accept_changes: bool) -> Begin {
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Begin { identity: Identity { job: job.to_owned(), settings }, num_slots: 1, accept_changes }
    }

    #[test]
    fn other_jobs_and_settings_are_refused_by_name() {
        let known = begin("a", &[("key", "id"), ("window_time", "180"), ("old", "1")], false).identity;
        let check = |begin: &Begin| check(Path::new("f"), &known, begin).map_err(|error| error.to_string());
        assert_eq!(
            check(&begin("b", &[], true)).unwrap_err(),
            "folder \"f\" holds the state of job \"a\", and this is job \"b\": give it a folder of its own"
        );
        let changed = [("key", "id"), ("window_time", "60"), ("more", "x")];
        let error = check(&begin("a", &changed, false)).unwrap_err();
        let lines: Vec<_> = error.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "  kept     key          \"id\"",
                "  changed  window_time  \"180\" -> \"60\"",
                "  new      more         -> \"x\"",
                "  dropped  old          \"1\" ->"
            ]
        );
        check(&begin("a", &changed, true)).unwrap();
        check(&begin("a", &[("old", "1"), ("window_time", "180"), ("key", "id")], false)).unwrap();
    }
}
