package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// syncData brings a file's content to disk.
func syncData(f *os.File) error { return syscall.Fdatasync(int(f.Fd())) }

// alive reports whether there is such a process.
func alive(pid int) bool {
	if pid <= 0 {
		return false
	}
	err := syscall.Kill(pid, 0)
	return err == nil || err == syscall.EPERM
}

// lockHolder is the process that holds the directory's flock, 0 if none does,
// from proc(5): /proc/locks names kind, process, device and inode.
func lockHolder(dir string) (int, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		return 0, err
	}
	f, err := os.Open("/proc/locks")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[1] != "FLOCK" {
			continue
		}
		place := strings.Split(fields[5], ":")
		if len(place) != 3 || place[2] != strconv.FormatUint(st.Ino, 10) {
			continue
		}
		pid, err := strconv.Atoi(fields[4])
		if err != nil || !hasOpen(pid, dir) {
			continue
		}
		return pid, nil
	}
	return 0, nil
}

// hasOpen tells an equal inode of another file system apart: the process must
// have the directory open. Where its descriptors may not be seen, it counts.
func hasOpen(pid int, dir string) bool {
	fds := fmt.Sprintf("/proc/%d/fd", pid)
	names, err := os.ReadDir(fds)
	if err != nil {
		return true
	}
	want, err := os.Stat(dir)
	if err != nil {
		return true
	}
	for _, name := range names {
		if info, err := os.Stat(fds + "/" + name.Name()); err == nil && os.SameFile(info, want) {
			return true
		}
	}
	return false
}

// openFiles is how many files the process pid may open; without one, how many a
// process started here may.
func openFiles(pid int) (limit uint64, whose string, err error) {
	if pid != 0 {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
		if err != nil {
			return 0, "", err
		}
		for _, line := range strings.Split(string(b), "\n") {
			if rest, ok := strings.CutPrefix(line, "Max open files"); ok {
				limit, err := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
				return limit, fmt.Sprintf("process %d", pid), err
			}
		}
		return 0, "", fmt.Errorf("process %d shows none", pid)
	}
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, "", err
	}
	return r.Cur, "a process started here", nil
}

// clockSynced asks the kernel, see adjtimex(2).
func clockSynced() (bool, error) {
	const timeError = 5
	state, err := syscall.Adjtimex(&syscall.Timex{})
	return state != timeError, err
}
