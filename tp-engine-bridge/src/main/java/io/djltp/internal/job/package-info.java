/** Contains what processes compare of their settings. */
@NullMarked
package io.djltp.internal.job;

import org.jspecify.annotations.NullMarked;
