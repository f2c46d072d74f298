/** Contains the {@code tp} command. */
@NullMarked
package io.djltp.examples;

import org.jspecify.annotations.NullMarked;
