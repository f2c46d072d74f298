/** Contains tests of how a backend is chosen and connects the ranks of a job. */
package io.djltp.launch;
