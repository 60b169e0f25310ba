//! A folder of checkpoints that was made once, by the first version of the format, is read by every later one.
//!
//! `tests/formats/v1` was made by `syncline sync` (see `sync` below) in five runs of 2, 3, 1, 2 and 1 workers, three of them killed: the
//! last one between the checkpoint and the publish of the join of `e:5`, whose first side is only named in the outbox, being in the log
//! of the run before. Nothing in it may ever be changed: formats are part of what versions promise.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/v1").join(name)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target)
        } else {
            fs::write(target, fs::read(entry.path()).unwrap()).unwrap()
        }
    }
}

fn state(action: &str, folder: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_syncline")).args(["state", action]).arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn sync(folder: &Path, workers: usize) -> String {
    let line = format!(
        "sync -b file:{0} --topic_one one --topic_two two --topic_one_keys k,n --topic_two_keys k,n -o sync --window_time 10 \
         --timestamp_field t --clock event --max_disorder 1s --enable_delay true --delay_topic delay --output_brokers file:{0}/out \
         --backendFolder {0}/state --at_end keep --until end --accept_changes -w {workers}",
        folder.display()
    );
    let output = Command::new(env!("CARGO_BIN_EXE_syncline"))
        .args(line.split_whitespace())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn version_1_says_what_it_said() {
    assert!(state("verify", &kept("store")).contains("whole: 9 segments, 12 frames"));
    let said = state("export", &kept("store"));
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    let expected = fs::read_to_string(kept("export.jsonl")).unwrap();
    assert_eq!(lines, expected.lines().collect::<Vec<_>>());
}

#[test]
fn a_job_goes_on_from_version_1() {
    for workers in [1, 3] {
        let folder = tempfile::tempdir().unwrap();
        copy(&kept("store"), &folder.path().join("state/one_two_sync"));
        copy(&kept("input"), folder.path());
        let said = sync(folder.path(), workers);
        assert!(
            said.contains("in=0 restored=4 ") && said.contains("pending=4 ") && said.contains("difference=0"),
            "{said}"
        );
        let joined: Vec<String> = fs::read_dir(folder.path().join("out"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_str().unwrap().contains("fasten.sync.out"))
            .flat_map(|path| fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect::<Vec<_>>())
            .collect();
        let input =
            |name: &str| fs::read_to_string(kept("input").join(name)).unwrap().lines().last().unwrap().to_owned();
        let expected = format!("{{\"key\":\"e:5\",\"one\":{},\"two\":{}}}", input("one.jsonl"), input("two.jsonl"));
        assert_eq!(joined, [expected], "what was not published is published, from both logs, once");
    }
}
