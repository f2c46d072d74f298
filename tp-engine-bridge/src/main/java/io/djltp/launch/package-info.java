/** Contains the choice of a backend for collective operations, and the start of a job. */
package io.djltp.launch;
