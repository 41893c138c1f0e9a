import torch

from student.encoders.products import embedding_rows
from student.row_adam import RowAdam

PAD = 1


def trained(by_rows: bool) -> torch.Tensor:
    """A table after three steps on few of its rows, some of them twice in a step."""
    generator = torch.Generator().manual_seed(3)
    table, other = torch.randn(2, 7, 3, generator=generator).unbind()
    table, other = table.clone().requires_grad_(), other.clone().requires_grad_()
    optimizer = RowAdam([table], [other], lr=0.1, padding_idx=PAD)
    for ids in ([0, 2, 2], [5, PAD, 2], [0, 0, 6]):
        ids_T = torch.tensor(ids)
        rows = optimizer.use(ids_T) if by_rows else None
        first, again = (embedding_rows(table, ids_T, PAD, rows) for _ in range(2))
        loss = (first**3 @ other.T).sin().sum() + (again * other[:3]).cos().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.clip_gradients(1.0)
        optimizer.step()
        optimizer.zero_grad()
    optimizer.catch_up()
    return table.detach()


def test_gradients_by_rows_move_a_table_as_those_of_the_whole_do() -> None:
    by_rows, whole = trained(by_rows=True), trained(by_rows=False)
    torch.testing.assert_close(by_rows, whole)
    assert not torch.equal(by_rows[0], by_rows[2])
