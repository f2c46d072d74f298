/**
 * Contains what a training step will communicate, as blocks and losses say it from shapes alone.
 */
@NullMarked
package io.djltp.internal.forecast;

import org.jspecify.annotations.NullMarked;
