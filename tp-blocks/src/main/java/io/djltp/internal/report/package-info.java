/** Contains figures of the machine. */
@NullMarked
package io.djltp.internal.report;

import org.jspecify.annotations.NullMarked;
