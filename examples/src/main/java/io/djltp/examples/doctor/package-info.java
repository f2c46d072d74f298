/** Contains {@code tp doctor}: what is here, and how fast it is. */
@NullMarked
package io.djltp.examples.doctor;

import org.jspecify.annotations.NullMarked;
