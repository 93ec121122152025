/* ZC_ASSERT holds in release builds: it says where and what, and aborts. */
#define NDEBUG
#include "support.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "zc_assert.h"

static void true_condition_passes_and_is_evaluated_once(void) {
    int evaluations = 0;
    ZC_ASSERT(++evaluations == 1);
    CHECK_EQ(evaluations, 1);
}

static void false_condition_reports_and_aborts(void) {
    int output[2], status = 0;
    char text[512] = "";
    CHECK_EQ(pipe(output), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dup2(output[1], STDERR_FILENO);
        int balance = -1;
        ZC_ASSERT(balance >= 0);
        _exit(0);
    }
    close(output[1]);
    size_t used = 0;
    for (ssize_t got; (got = read(output[0], text + used, sizeof text - 1 - used)) > 0;) {
        used += (size_t)got;
    }
    close(output[0]);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status));
    CHECK_EQ(WTERMSIG(status), SIGABRT);
    CHECK(strstr(text, "test_assert.c:") != NULL);
    CHECK(strstr(text, "balance >= 0") != NULL);
}

int main(void) {
    const test_case cases[] = {
        {"a true condition passes, evaluated once", true_condition_passes_and_is_evaluated_once},
        {"a false one reports and aborts", false_condition_reports_and_aborts},
    };
    return RUN_TESTS(cases);
}
