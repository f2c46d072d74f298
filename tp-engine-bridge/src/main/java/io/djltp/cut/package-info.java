/** Contains which ranges of an axis each rank of a group holds. */
package io.djltp.cut;
