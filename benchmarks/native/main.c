/* loadgen MODE --port N [options]: see benchmarks/README.md. */
#define _GNU_SOURCE
#include "loadgen.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static const struct option known[] = {
    { "port", required_argument, NULL, 'p' },        { "host", required_argument, NULL, 'h' },
    { "pid", required_argument, NULL, 'i' },         { "connections", required_argument, NULL, 'c' },
    { "size", required_argument, NULL, 's' },        { "depth", required_argument, NULL, 'd' },
    { "warmup", required_argument, NULL, 'w' },      { "seconds", required_argument, NULL, 't' },
    { "count", required_argument, NULL, 'n' },       { "interval-us", required_argument, NULL, 'I' },
    { "period", required_argument, NULL, 'P' },      { "transfer", required_argument, NULL, 'T' },
    { "every", required_argument, NULL, 'e' },       { "priming", required_argument, NULL, 'r' },
    { "path", required_argument, NULL, 'a' },        { "upload", required_argument, NULL, 'u' },
    { "download", required_argument, NULL, 'D' },    { "expect", required_argument, NULL, 'x' },
    { NULL, 0, NULL, 0 },
};

static double number(const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || value < 0)
        die("not a number: %s", text);
    return value;
}

static void parse(int argc, char **argv, struct options *out)
{
    for (int flag; (flag = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (flag) {
        case 'p': out->port = (int)number(optarg); break;
        case 'h': out->host = optarg; break;
        case 'i': out->server_pid = (pid_t)number(optarg); break;
        case 'c': out->connections = (unsigned)number(optarg); break;
        case 's': out->size = (size_t)number(optarg); break;
        case 'd': out->depth = (unsigned)number(optarg); break;
        case 'w': out->warmup = number(optarg); break;
        case 't': out->seconds = number(optarg); break;
        case 'n': out->count = (uint64_t)number(optarg); break;
        case 'I': out->interval_us = (uint64_t)number(optarg); break;
        case 'P': out->period = (uint64_t)number(optarg); break;
        case 'T': out->transfer = (uint64_t)number(optarg); break;
        case 'e': out->every = (unsigned)number(optarg); break;
        case 'r': out->priming = (unsigned)number(optarg); break;
        case 'a': out->path = optarg; break;
        case 'u': out->upload = (uint64_t)number(optarg); break;
        case 'D': out->download = (uint64_t)number(optarg); break;
        case 'x': out->expect = optarg; break;
        default: die("unknown option");
        }
    }
    if (optind != argc - 1)
        die("usage: loadgen MODE --port N [options]");
    out->mode = argv[optind];
}

static void check(const struct options *options)
{
    if (options->port <= 0 || options->port > 65535)
        die("--port is needed");
    if (options->size < 8)
        die("--size: at least 8 bytes, the length of a stamp");
    if (options->connections < 1 || options->depth < 1 || options->period < 1 || options->every < 1)
        die("--connections, --depth, --period and --every: at least 1");
    if (options->seconds <= 0 && options->count == 0)
        die("--seconds or --count is needed");
    if (options->interval_us > 0 && (options->connections > 1 || options->depth > 1))
        die("--interval-us: one connection, one message in flight");
}

int main(int argc, char **argv)
{
    struct options options = {
        .host = "127.0.0.1", .connections = 1, .size = 1024, .depth = 1, .period = PATTERN_PERIOD,
        .transfer = 1u << 30, .every = 8, .path = "/",
    };
    parse(argc, argv, &options);
    check(&options);
    if (strcmp(options.mode, "echo") == 0)
        run_echo(&options);
    else if (strcmp(options.mode, "connect") == 0)
        run_connect(&options);
    else if (strcmp(options.mode, "sink") == 0)
        run_sink(&options, false);
    else if (strcmp(options.mode, "lines") == 0)
        run_sink(&options, true);
    else if (strcmp(options.mode, "source") == 0)
        run_source(&options, false);
    else if (strcmp(options.mode, "discard") == 0)
        run_source(&options, true);
    else if (strcmp(options.mode, "transfer") == 0)
        run_transfer(&options);
    else if (strcmp(options.mode, "mixed") == 0)
        run_mixed(&options);
    else if (strcmp(options.mode, "idle") == 0)
        run_idle(&options);
    else if (strcmp(options.mode, "http") == 0)
        run_http(&options);
    else if (strcmp(options.mode, "websocket") == 0)
        run_websocket(&options);
    else
        die("unknown mode: %s", options.mode);
    return 0;
}
