/** Contains which ranges of an axis each rank of a group holds. */
@NullMarked
package io.djltp.cut;

import org.jspecify.annotations.NullMarked;
