/** Contains updates of weights in place, and bags of an embedding. */
@NullMarked
package io.djltp.internal.update;

import org.jspecify.annotations.NullMarked;
