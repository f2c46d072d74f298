/** Contains the parallel trainer. */
@NullMarked
package io.djltp.training;

import org.jspecify.annotations.NullMarked;
