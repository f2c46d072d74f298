/** Contains the choice of a backend for collective operations, and the start of a job. */
@NullMarked
package io.djltp.launch;

import org.jspecify.annotations.NullMarked;
