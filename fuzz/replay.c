/* SPDX-License-Identifier: MIT
 * replay.c: runs the named files, each as one input: a corpus as a test, or an input saved by a
 * fuzzer. */
#include <stdint.h>
#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

int main(int argc, char **argv)
{
	static uint8_t bytes[1 << 20];
	for (int i = 1; i < argc; i++) {
		FILE *file = fopen(argv[i], "rb");
		if (!file) {
			perror(argv[i]);
			return 2;
		}
		size_t count = fread(bytes, 1, sizeof bytes, file);
		if (ferror(file)) { /* a folder can be opened, and not be read */
			perror(argv[i]);
			return 2;
		}
		fclose(file);
		fprintf(stderr, "%s\n", argv[i]);
		LLVMFuzzerTestOneInput(bytes, count);
	}
	return 0;
}
