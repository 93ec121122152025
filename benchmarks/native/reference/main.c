/* zcref: options, and which half runs.
 *
 *   zcref receive KIND [options]            prints {"port": …}, takes one connection, prints a record
 *   zcref send KIND --port N [options]      prints a record
 *   zcref loopback KIND --sender KIND       both, on 127.0.0.1; the receiver's record, then the
 *                                           sender's, as one line: {"receiver": …, "sender": …}
 */
#define _GNU_SOURCE
#include "zcref.h"

#include <getopt.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct option known[] = {
    { "host", required_argument, NULL, 'h' },   { "port", required_argument, NULL, 'p' },
    { "sender", required_argument, NULL, 's' }, { "bytes", required_argument, NULL, 'b' },
    { "warmup", required_argument, NULL, 'w' }, { "size", required_argument, NULL, 'z' },
    { "header", required_argument, NULL, 'H' }, { "answer", required_argument, NULL, 'A' },
    { "arena", required_argument, NULL, 'a' },  { "copybuf", required_argument, NULL, 'c' },
    { "mss", required_argument, NULL, 'm' },    { "lowat", required_argument, NULL, 'l' },
    { "rcvbuf", required_argument, NULL, 'r' }, { "no-hash", no_argument, NULL, 'n' },
    { "pace", required_argument, NULL, 'P' },
    { NULL, 0, NULL, 0 },
};

/* A number with k, m or g behind it: 1,024, 1,024² or 1,024³ times as much. */
static uint64_t amount(const char *text)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    int shift = *end == 'k' ? 10 : *end == 'm' ? 20 : *end == 'g' ? 30 : 0;
    if (end == text || *text == '-' || end[shift != 0] != '\0')
        die("not a number of bytes: %s", text);
    return value << shift;
}

static void parse(int argc, char **argv, struct options *out)
{
    for (int flag; (flag = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (flag) {
        case 'h': out->host = optarg; break;
        case 'p': out->port = optarg; break;
        case 's': out->sender = optarg; break;
        case 'b': out->bytes = amount(optarg); break;
        case 'w': out->warmup = amount(optarg); break;
        case 'z': out->size = amount(optarg); break;
        case 'H': out->header = amount(optarg); break;
        case 'A': out->answer = amount(optarg); break;
        case 'a': out->arena = amount(optarg); break;
        case 'c': out->copybuf = amount(optarg); break;
        case 'm': out->mss = (int)amount(optarg); break;
        case 'l': out->lowat = (int)amount(optarg); break;
        case 'r': out->rcvbuf = (int)amount(optarg); break;
        case 'P': out->pace = amount(optarg); break;
        case 'n': out->hash = false; break;
        default: die("unknown option");
        }
    }
}

static void check(const struct options *options)
{
    if (options->size == 0 || options->size > 1u << 30)
        die("--size: from 1 to 1g");
    if (options->header > PAGE || options->answer > 256)
        die("--header: at most 4096; --answer: at most 256");
    if (options->bytes == 0 || options->bytes % (options->header + options->size) != 0)
        die("--bytes: a whole number of messages of --header + --size");
    if (options->warmup >= options->bytes)
        die("--warmup: less than --bytes");
}

static void receive(const struct options *options)
{
    char address[64];
    int listener = listen_on(options, address);
    printf("{\"port\": %s}\n", strchr(address, ' ') + 1);
    fflush(stdout);
    run_receiver(options, listener, STDOUT_FILENO);
}

/* Each half gets a CPU of its own where there are two: on one they would take turns. */
static void pin(int number)
{
    cpu_set_t allowed, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2)
        return;
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && seen++ == number)
            CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0)
        die_errno("sched_setaffinity");
}

static void loopback(struct options *options)
{
    char address[64], record[2][2048] = { "", "" };
    int pipes[2][2], status[2];
    pid_t child[2];
    int listener = listen_on(options, address);
    struct options sender = *options;
    sender.kind = options->sender;
    sender.port = strchr(address, ' ') + 1;
    for (int i = 0; i < 2; i++) {
        if (pipe(pipes[i]) != 0 || (child[i] = fork()) < 0)
            die_errno("fork");
        if (child[i] == 0) {
            dup2(pipes[i][1], STDOUT_FILENO); /* for die() */
            pin(i);
            if (i == 0)
                run_receiver(options, listener, STDOUT_FILENO);
            else
                run_sender(&sender, STDOUT_FILENO);
            exit(0);
        }
        close(pipes[i][1]);
    }
    for (int i = 0; i < 2; i++) {
        size_t have = 0;
        for (ssize_t n; (n = read(pipes[i][0], record[i] + have, sizeof record[i] - 1 - have)) > 0;)
            have += (size_t)n;
        record[i][strcspn(record[i], "\n")] = '\0';
        waitpid(child[i], &status[i], 0);
    }
    printf("{\"receiver\": %s, \"sender\": %s}\n", *record[0] ? record[0] : "null",
           *record[1] ? record[1] : "null");
    exit(status[0] || status[1] ? 1 : 0);
}

int main(int argc, char **argv)
{
    struct options options = {
        .host = "127.0.0.1", .port = "0", .sender = "plain", .bytes = 1ull << 30, .size = 256 << 10,
        .arena = 1 << 20, .copybuf = PAGE, .hash = true,
    };
    parse(argc, argv, &options);
    if (optind != argc - 2)
        die("usage: zcref receive|send|loopback KIND [options]");
    options.kind = argv[optind + 1];
    check(&options);
    if (strcmp(argv[optind], "receive") == 0)
        receive(&options);
    else if (strcmp(argv[optind], "send") == 0)
        run_sender(&options, STDOUT_FILENO);
    else if (strcmp(argv[optind], "loopback") == 0)
        loopback(&options);
    else
        die("usage: zcref receive|send|loopback KIND [options]");
    return 0;
}
