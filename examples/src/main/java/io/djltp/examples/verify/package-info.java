/** Contains {@code tp verify}: parallel layers beside the layers that they are cut from. */
@NullMarked
package io.djltp.examples.verify;

import org.jspecify.annotations.NullMarked;
