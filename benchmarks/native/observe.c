/* What the kernel accounts to another process, read without its help.
 *
 * The CPU clock of a process (clock_getcpuclockid(3)) covers all its threads in nanoseconds; a
 * thread that is running is at most one scheduler tick behind. The user/system split of
 * /proc/pid/stat comes in clock ticks, and context switches are kept per thread (proc(5)).
 */
#define _GNU_SOURCE
#include "loadgen.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void read_cpu_clock(pid_t pid, struct usage *out)
{
    clockid_t clock;
    struct timespec time;
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0)
        die("the server (process %d) is gone", (int)pid);
    out->cpu_ns = (uint64_t)time.tv_sec * 1000000000ull + (uint64_t)time.tv_nsec;
}

static void read_stat(pid_t pid, struct usage *out)
{
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        die_errno(path);
    size_t n = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[n] = '\0';
    /* The command name may hold spaces and parentheses: fields count from the last ')'. */
    const char *rest = strrchr(line, ')');
    unsigned long long user = 0, system = 0;
    long long rss = 0;
    if (rest == NULL
        || sscanf(rest + 1,
                  " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu"
                  " %*d %*d %*d %*d %*d %*d %*u %*u %lld",
                  &user, &system, &rss)
            != 3)
        die("cannot read %s", path);
    uint64_t tick_us = 1000000ull / (uint64_t)sysconf(_SC_CLK_TCK);
    out->user_us = user * tick_us;
    out->system_us = system * tick_us;
    out->rss_bytes = (uint64_t)rss * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void add_switches(const char *path, struct usage *out)
{
    char line[256];
    unsigned long long value;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return; /* a thread that ended between readdir and here */
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "voluntary_ctxt_switches: %llu", &value) == 1)
            out->voluntary += value;
        else if (sscanf(line, "nonvoluntary_ctxt_switches: %llu", &value) == 1)
            out->involuntary += value;
    }
    fclose(file);
}

/* Time that all CPUs were not idle (proc(5): user nice system idle iowait irq softirq steal). */
static void read_machine(struct usage *out)
{
    unsigned long long user, nice, system, irq, softirq, steal;
    FILE *file = fopen("/proc/stat", "re");
    if (file == NULL
        || fscanf(file, "cpu %llu %llu %llu %*u %*u %llu %llu %llu", &user, &nice, &system, &irq,
                  &softirq, &steal)
            != 6)
        die("cannot read /proc/stat");
    fclose(file);
    uint64_t tick_us = 1000000ull / (uint64_t)sysconf(_SC_CLK_TCK);
    out->machine_us = (user + nice + system + irq + softirq + steal) * tick_us;
}

void observe(pid_t pid, struct usage *out)
{
    memset(out, 0, sizeof *out);
    if (pid == 0)
        return;
    char path[320];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *threads = opendir(path);
    if (threads == NULL)
        die_errno(path);
    for (struct dirent *entry; (entry = readdir(threads)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/status", (int)pid, entry->d_name);
        add_switches(path, out);
    }
    closedir(threads);
    read_machine(out);
    read_stat(pid, out);
    read_cpu_clock(pid, out);
}
